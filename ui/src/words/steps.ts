export const en = { name: "Steps" };

export const ko: typeof en = { name: "계산" };
