export const en = { name: "Text" };

export const ko: typeof en = { name: "본문" };
