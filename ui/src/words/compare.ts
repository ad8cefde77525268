export const en = { name: "Compare" };

export const ko: typeof en = { name: "비교" };
