export const en = { name: "Flow" };

export const ko: typeof en = { name: "흐름" };
