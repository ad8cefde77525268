export const en = { name: "Grid" };

export const ko: typeof en = { name: "모아보기" };
