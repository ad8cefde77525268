export const en = { name: "Map" };

export const ko: typeof en = { name: "지도" };
