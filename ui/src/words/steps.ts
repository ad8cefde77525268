export const en = {
  name: "Steps",
  choose: "The token that looks",
  words: "Words of the text: choose the one that looks",
  tokensOf: "Its tokens",
  steps: "Steps of the calculation",
  step: (number: number, all: number) => `Step ${number} of ${all}`,
  back: "Back",
  next: "Next",
  keys: "Arrow keys ← → walk through the steps.",
  count: "Keys shown",
  digits: "More digits",
  names: {
    project: "Vectors",
    product: "Dot product",
    scale: "Scale",
    softcap: "Cap",
    bias: "Bias",
    mask: "Mask",
    softmax: "Softmax",
    mix: "Mix",
  },
  sentences: {
    project: (query: string) =>
      `From each token’s vector x three matrices make a query, a key and a value: q says what “${query}” looks for, k what a token can be found by, v what it hands over.`,
    product: (query: string) =>
      `The dot product of q with each key is large where “${query}” finds what it looks for: multiply dimension by dimension, and add up.`,
    scale: (width: number) =>
      `Each product is divided by √d = √${width}, because a sum of ${width} terms grows with √${width}; without this the softmax would give nearly all to one key.`,
    scaleOther: (scale: string) =>
      `Each product is multiplied by ${scale}, the scale that this model uses in the place of 1/√d.`,
    softcap: (cap: string) =>
      `This model bends large scores down, so that none is above ${cap} or below −${cap}.`,
    bias: "This model adds a number that depends on the distance or the position.",
    mask: (hidden: number) =>
      hidden === 0
        ? "Nothing is hidden here: this token may look at all others, so the scores stay as they are."
        : `What may not be seen gets −∞ for a score: here ${hidden.toLocaleString("en")} ${hidden === 1 ? "key" : "keys"}, such as those that come later.`,
    softmax:
      "The softmax raises e to each score and divides by the sum: the weights lie between 0 and 1 and add up to 100 %, and what is hidden gets exactly 0.",
    mix: (query: string) =>
      `The output is the sum of all values, each times its weight: what “${query}” takes from this head.`,
    noValues: "The values were not recorded, so the last step cannot be shown.",
  },
  columns: {
    token: "Key",
    k: "k, what it is found by",
    product: "q·k",
    scale: (width: number) => `÷√${width}`,
    scaleOther: (scale: string) => `× ${scale}`,
    softcap: "capped",
    bias: "+ bias",
    mask: "masked",
    weight: "weight",
    v: "v, what it hands over",
  },
  query: "q",
  queryOf: (token: string) => `q of “${token}”`,
  keyOf: (token: string) => `k of “${token}”`,
  valueOf: (token: string) => `v of “${token}”`,
  output: "output",
  outputOf: (token: string) => `output of “${token}”`,
  partial: "the keys shown alone",
  others: (count: number) =>
    count === 1 ? "1 other key" : `${count.toLocaleString("en")} other keys`,
  sink: "learned sink (has no value)",
  sum: "Sum",
  own: "itself",
  hidden: "hidden",
  numbers: (what: string) => `Numbers of ${what}`,
  vector: (what: string, width: number) => `${what}: ${width} numbers; show them`,
  dimension: "dim",
  legend: (largest: string) =>
    `Orange is above 0, blue below; full colour is ${largest}, and colour grows with the square root. Choose a strip to read its numbers.`,
  closeNumbers: "Close the numbers",
  productSum: (sum: string) => `All products add up to q·k = ${sum}`,
  note: "Every number comes from the recording, computed in 64 bits: q and k are as this head multiplied them, positions included if the model rotates them in.",
  not: "This is one head. The block adds the outputs of all heads to what the token already was; so a large weight is a fact about this sum, not yet a reason for the answer.",
};

export const ko: typeof en = {
  name: "계산",
  choose: "바라보는 토큰",
  words: "글의 단어: 바라보는 단어를 고르세요",
  tokensOf: "이 단어의 토큰",
  steps: "계산 단계",
  step: (number, all) => `${all}단계 중 ${number}단계`,
  back: "이전",
  next: "다음",
  keys: "화살표 키 ← →로 단계를 오갑니다.",
  count: "보이는 키",
  digits: "자릿수 더 보기",
  names: {
    project: "벡터",
    product: "내적",
    scale: "스케일",
    softcap: "상한",
    bias: "바이어스",
    mask: "마스크",
    softmax: "소프트맥스",
    mix: "섞기",
  },
  sentences: {
    project: (query) =>
      `토큰의 벡터 x에 세 행렬을 곱하면 쿼리, 키, 값이 됩니다. q는 ‘${query}’ 토큰이 무엇을 찾는지, k는 토큰이 무엇으로 찾아지는지, v는 무엇을 건네는지를 나타냅니다.`,
    product: (query) =>
      `q와 각 키의 내적은 ‘${query}’ 토큰이 찾는 것과 맞을수록 커집니다. 차원마다 곱해서 모두 더합니다.`,
    scale: (width) =>
      `각 내적을 √d = √${width}로 나눕니다. ${width}개 항의 합은 √${width}에 비례해 커지므로, 나누지 않으면 소프트맥스가 한 키에 거의 모두를 주게 됩니다.`,
    scaleOther: (scale) => `각 내적에 ${scale}을(를) 곱합니다. 이 모델이 1/√d 대신 쓰는 값입니다.`,
    softcap: (cap) => `이 모델은 큰 점수를 눌러 ${cap}보다 크거나 −${cap}보다 작지 않게 합니다.`,
    bias: "이 모델은 거리나 위치에 따라 정해지는 수를 더합니다.",
    mask: (hidden) =>
      hidden === 0
        ? "여기서는 가려진 것이 없습니다. 이 토큰은 모두를 볼 수 있으므로 점수가 그대로 남습니다."
        : `볼 수 없는 것의 점수는 −∞가 됩니다. 뒤에 오는 토큰처럼 가려진 키가 여기서는 ${hidden.toLocaleString("ko")}개입니다.`,
    softmax:
      "소프트맥스는 e를 각 점수만큼 거듭제곱하고 그 합으로 나눕니다. 가중치는 0과 1 사이이고 모두 더하면 100%이며, 가려진 것은 정확히 0입니다.",
    mix: (query) =>
      `값마다 가중치를 곱해 모두 더한 것이 출력입니다. ‘${query}’ 토큰이 이 헤드에서 받아 가는 것입니다.`,
    noValues: "값(v)이 기록되지 않아 마지막 단계는 보여 줄 수 없습니다.",
  },
  columns: {
    token: "키",
    k: "k, 찾아지는 단서",
    product: "q·k",
    scale: (width) => `÷√${width}`,
    scaleOther: (scale) => `× ${scale}`,
    softcap: "상한",
    bias: "+ 바이어스",
    mask: "마스크",
    weight: "가중치",
    v: "v, 건네는 것",
  },
  query: "q",
  queryOf: (token) => `‘${token}’의 q`,
  keyOf: (token) => `‘${token}’의 k`,
  valueOf: (token) => `‘${token}’의 v`,
  output: "출력",
  outputOf: (token) => `‘${token}’의 출력`,
  partial: "보이는 키만",
  others: (count) => `다른 키 ${count.toLocaleString("ko")}개`,
  sink: "학습된 싱크(값이 없음)",
  sum: "합",
  own: "자기 자신",
  hidden: "가려짐",
  numbers: (what) => `${what}의 숫자`,
  vector: (what, width) => `${what}: 숫자 ${width}개 보기`,
  dimension: "차원",
  legend: (largest) =>
    `주황은 0보다 크고 파랑은 작으며, 가장 진한 색은 ${largest}이고, 색은 제곱근에 따라 짙어집니다. 띠를 고르면 숫자를 볼 수 있습니다.`,
  closeNumbers: "숫자 닫기",
  productSum: (sum) => `곱을 모두 더하면 q·k = ${sum}`,
  note: "모든 숫자는 기록에서 온 것을 64비트로 계산한 것입니다. q와 k는 이 헤드가 곱한 그대로이며, 위치를 회전으로 넣는 모델이면 그것까지 들어 있습니다.",
  not: "이것은 헤드 하나입니다. 블록은 모든 헤드의 출력을 토큰이 원래 지닌 것에 더합니다. 큰 가중치는 이 합에 대한 사실일 뿐, 아직 답의 까닭은 아닙니다.",
};
