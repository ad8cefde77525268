export const en = {
  name: "Flow",
  words: "Words of the text: choose the one whose origin is traced",
  choose: "The word of the last layer",
  title: (word: string) => `Where “${word}” at the last layer comes from`,
  measure: "Measure",
  raw: "Weights",
  norm: "Weights × values",
  residual: "Residual",
  residualNote: "What part of each layer’s output is its own input: 0.5 in the paper.",
  input: "words read",
  before: "words before this layer",
  down: "Traced down to",
  downTo: (layer: number) => (layer === 0 ? "the words read" : `layer ${layer}`),
  whole: (layer: number, sink: string) =>
    `Shown through the last layers only: below layer ${layer} less than a quarter is left in words, the rest has run into ${sink}.`,
  sinks: { first: "the first token (the sink)", special: "special tokens" },
  toInput: "Trace down to the words read",
  lastLayer: "last layer",
  picture: (word: string, most: string) =>
    `Ribbons through the layers: “${word}” at the last layer traces back mostly to ${most}. The list holds every number.`,
  most: "It comes most from",
  apart: "Shown apart",
  tracing: "Traced so far",
  soFar: (layer: number, layers: number) =>
    layer === layers
      ? `Tracing down through ${layers} layers …`
      : `Tracing down: ${layers - layer} of ${layers} layers so far …`,
  noStack: "This map belongs to no stack of layers over one text, so nothing flows through it.",
  kept: (part: string) => `The ribbons drawn carry ${part} of what flows through each layer, or more.`,
  meaning: (residual: string) =>
    `Rollout (Abnar & Zuidema 2020): from the last layer down, what a word holds is handed on as the heads read, and ${residual} of it stays where it is, by the residual connection. A share is what has arrived at the place of a word at the lower end; all shares make 100 %.`,
  not: "It is an estimate of where something could have come from. It treats all heads alike and knows nothing of what the feed-forward layers do, or of what the model predicts.",
};

export const ko: typeof en = {
  name: "흐름",
  words: "글의 단어: 유래를 따라갈 단어를 고르세요",
  choose: "마지막 층의 단어",
  title: (word) => `마지막 층의 ‘${word}’, 어디에서 왔는가`,
  measure: "척도",
  raw: "가중치",
  norm: "가중치 × 값",
  residual: "잔차",
  residualNote: "각 층의 출력 가운데 자기 입력이 그대로 남는 몫. 논문에서는 0.5입니다.",
  input: "읽은 단어",
  before: "이 층 앞의 단어",
  down: "어디까지",
  downTo: (layer) => (layer === 0 ? "읽은 단어까지" : `${layer}층까지`),
  whole: (layer, sink) =>
    `마지막 층들만 보입니다. ${layer}층 아래에서는 단어에 남은 것이 4분의 1이 안 되고, 나머지는 ${sink} 쪽으로 흘러갔습니다.`,
  sinks: { first: "첫 토큰(싱크)", special: "특수 토큰" },
  toInput: "읽은 단어까지 따라가기",
  lastLayer: "마지막 층",
  picture: (word, most) =>
    `층을 지나는 띠: 마지막 층의 ‘${word}’은(는) 주로 ${most}에서 옵니다. 숫자는 모두 목록에 있습니다.`,
  most: "가장 많이 온 곳",
  apart: "따로 보이는 것",
  tracing: "지금까지 따라간 층",
  soFar: (layer, layers) =>
    layer === layers
      ? `${layers}개 층을 따라 내려가는 중 …`
      : `따라 내려가는 중: ${layers}개 층 가운데 ${layers - layer}개 …`,
  noStack: "이 맵은 한 글을 읽는 층의 묶음에 들어 있지 않아 흐름을 따라갈 수 없습니다.",
  kept: (part) => `그려진 띠는 각 층을 지나는 것의 ${part} 이상을 나릅니다.`,
  meaning: (residual) =>
    `롤아웃(Abnar & Zuidema 2020): 마지막 층에서 아래로, 단어가 지닌 것을 헤드들이 읽는 대로 넘겨주되, 그 가운데 ${residual}는 잔차 연결을 따라 제자리에 남깁니다. 몫은 아래 끝에서 단어 자리에 다다른 양이며, 모두 더하면 100%입니다.`,
  not: "어디에서 왔을 수 있는지를 어림한 것입니다. 모든 헤드를 똑같이 보며, 피드포워드 층이 하는 일이나 모델이 무엇을 예측하는지는 알지 못합니다.",
};
