export const en = { name: "Heads" };

export const ko: typeof en = { name: "헤드" };
