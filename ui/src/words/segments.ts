export const en = { name: "Segments" };

export const ko: typeof en = { name: "구간" };
