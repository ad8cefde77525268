export const en = {
  name: "Text",
  words: "Words of the text",
  wordsRead: "Words that are read",
  wordsReading: "Words that read",
  direction: "Direction",
  reads: "What it reads",
  readBy: "Who reads it",
  scope: "Over",
  head: (layer: number, head: number) => `Head ${layer}.${head}`,
  layer: (layer: number) => `Layer ${layer}`,
  all: "All layers",
  measure: "Measure",
  raw: "Weights",
  norm: "Weights × values",
  choose: "Choose a word.",
  keys: "Arrow keys walk from word to word, Enter chooses.",
  titleReads: (word: string) => `What “${word}” reads`,
  titleReadBy: (word: string) => `Who reads “${word}”`,
  mostReads: "It reads most from",
  mostReadBy: "Read most by",
  apart: "Shown apart",
  itself: "itself",
  first: "first token",
  special: "special token",
  hidden: "cannot be seen from here",
  hiddenReader: "cannot see it",
  hiddenCount: (count: number) => `${count.toLocaleString("en")} later words cannot be seen.`,
  hiddenReaders: (count: number) => `${count.toLocaleString("en")} earlier words cannot see it.`,
  nothing: "There is no other word here.",
  rank: (rank: number, count: number) =>
    `rank ${rank.toLocaleString("en")} of ${count.toLocaleString("en")}`,
  heads: "Heads that look most at other words",
  darkest: (share: string) => `Darkest: ${share}`,
  lookAt: "Point at a word to read its share.",
  progress: (done: number, all: number) => `Layer ${done} of ${all} …`,
  over: {
    head: "in this head",
    layer: "on average over the heads of this layer",
    all: "on average over all heads and layers",
  },
  meaning: {
    reads: {
      raw: (word: string, over: string) =>
        `A word’s share is the part of its attention that “${word}” gives to it ${over}. All shares, those shown apart included, make 100 %.`,
      norm: (word: string, over: string) =>
        `A word’s share is the part that comes from it of all that attention brings to “${word}” ${over}: the weight times the length of the value that is handed over. All shares, those shown apart included, make 100 %.`,
    },
    read_by: {
      raw: (word: string, over: string) =>
        `A word’s share is the part of its own attention that it gives to “${word}” ${over}. Every word has 100 % to give, so the shares of several readers don’t add up to 100 %.`,
      norm: (word: string, over: string) =>
        `A word’s share is the part that comes from “${word}” of all that attention brings to it ${over}: the weight times the length of the value. Every word takes 100 %, so the shares of several readers don’t add up to 100 %.`,
    },
  },
  sink: "The first token is a sink: a head with nothing to look for looks there.",
  noRescale: "What is shown apart is not shaded, and nothing is divided away.",
  not: "This is where the model looked, not why it answered as it did: in deeper layers every position already holds a mixture of words.",
};

export const ko: typeof en = {
  name: "본문",
  words: "글의 단어",
  wordsRead: "읽히는 단어",
  wordsReading: "읽는 단어",
  direction: "방향",
  reads: "이 단어가 읽는 것",
  readBy: "이 단어를 읽는 것",
  scope: "범위",
  head: (layer, head) => `헤드 ${layer}.${head}`,
  layer: (layer) => `${layer}층`,
  all: "모든 층",
  measure: "척도",
  raw: "가중치",
  norm: "가중치 × 값",
  choose: "단어를 고르세요.",
  keys: "화살표 키로 단어를 옮겨 다니고 Enter로 고릅니다.",
  titleReads: (word) => `‘${word}’ 자리에서 읽는 것`,
  titleReadBy: (word) => `‘${word}’ 자리를 읽는 것`,
  mostReads: "가장 많이 읽는 단어",
  mostReadBy: "가장 많이 읽어 가는 단어",
  apart: "따로 보이는 것",
  itself: "자기 자신",
  first: "첫 토큰",
  special: "특수 토큰",
  hidden: "여기서는 볼 수 없음",
  hiddenReader: "이 단어를 볼 수 없음",
  hiddenCount: (count) => `뒤에 오는 단어 ${count.toLocaleString("ko")}개는 볼 수 없습니다.`,
  hiddenReaders: (count) =>
    `앞에 있는 단어 ${count.toLocaleString("ko")}개는 이 단어를 볼 수 없습니다.`,
  nothing: "다른 단어가 없습니다.",
  rank: (rank, count) => `${count.toLocaleString("ko")}개 중 ${rank.toLocaleString("ko")}위`,
  heads: "다른 단어를 가장 많이 보는 헤드",
  darkest: (share) => `가장 진한 색: ${share}`,
  lookAt: "단어를 가리키면 몫을 읽을 수 있습니다.",
  progress: (done, all) => `${all}개 층 중 ${done}개 …`,
  over: {
    head: "이 헤드에서",
    layer: "이 층의 모든 헤드를 평균하여",
    all: "모든 층과 헤드를 평균하여",
  },
  meaning: {
    reads: {
      raw: (word, over) =>
        `단어의 몫은 ${over} ‘${word}’의 어텐션 가운데 그 단어로 가는 부분입니다. 따로 보이는 것까지 모두 더하면 100%입니다.`,
      norm: (word, over) =>
        `단어의 몫은 ${over} 어텐션이 ‘${word}’ 자리에 가져오는 것 가운데 그 단어에서 오는 부분입니다. 가중치에 건네지는 값의 길이를 곱했습니다. 따로 보이는 것까지 모두 더하면 100%입니다.`,
    },
    read_by: {
      raw: (word, over) =>
        `단어의 몫은 ${over} 그 단어가 자기 어텐션 가운데 ‘${word}’에 주는 부분입니다. 단어마다 100%씩 나누어 주므로 여러 단어의 몫을 더해도 100%가 되지 않습니다.`,
      norm: (word, over) =>
        `단어의 몫은 ${over} 어텐션이 그 단어 자리에 가져오는 것 가운데 ‘${word}’에서 오는 부분입니다(가중치 × 값의 길이). 단어마다 100%씩 받으므로 여러 단어의 몫을 더해도 100%가 되지 않습니다.`,
    },
  },
  sink: "첫 토큰은 싱크입니다. 찾을 것이 없는 헤드는 그곳을 봅니다.",
  noRescale: "따로 보이는 것은 칠하지 않으며, 그 몫을 빼고 다시 나누지도 않습니다.",
  not: "모델이 어디를 보았는지를 보여 줄 뿐, 왜 그렇게 답했는지를 말하지는 않습니다. 깊은 층의 자리에는 이미 여러 단어가 섞여 있습니다.",
};
