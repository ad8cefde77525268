export const en = {
  name: "Compare",
  show: "Compare",
  shows: { text: "Texts", maps: "Maps", heads: "Heads" },
  one: "There is only one recording here. Open two: jumok view FIRST SECOND.",
  first: "first",
  second: "second",
  notShape:
    "The two recordings do not have the same layers, heads and sizes, so single heads have no partner. Their texts can be compared over all layers.",
  otherModel:
    "These are different models: head 3.2 of one need not do what head 3.2 of the other does, unless one was trained on from the other.",
  notTokens:
    "The two texts are not the same token by token, so cells have no partner: both maps are shown, and no difference.",
  texts: {
    word: (word: string) => `“${word}” in both`,
    noPartner: (word: string) =>
      `“${word}” is not in the second text. Choose a word there to compare with.`,
    table: "Words that differ most",
    source: "word",
    change: "change",
    points: "points",
    missing: "not there",
    only: (which: string) => `only in the ${which}`,
    meaning:
      "Change is the second share less the first, in percentage points. Both are parts of 100 % of their own text: in a longer text there is less for every word.",
    other: "words of the text",
  },
  maps: {
    difference: "Second − first",
    cell: (query: string, key: string) => `${query} → ${key}`,
    mean: (size: number) =>
      size === 1
        ? "Every cell is one weight."
        : `A cell is the mean of ${size} × ${size} weights, so that the difference of two cells is exact.`,
    hint: "Point at a cell to read it, or walk with the arrow keys; Enter opens it in the map.",
    label: (which: string) => `Attention map, ${which}: arrow keys walk from cell to cell`,
    colours: (least: string) => `Both maps share one logarithmic scale, from ${least} to 1.`,
    more: (share: string) => `orange: the second gives up to ${share} more`,
    less: (share: string) => `blue: up to ${share} less`,
  },
  heads: {
    measure: "Measure",
    table: "Heads that differ most",
    head: "head",
    change: "change",
    all: (count: number) => `Show all ${count}`,
    line: "A point on the diagonal is a head that does the same in both.",
    across: (measure: string) => `${measure}, first`,
    up: (measure: string) => `${measure}, second`,
  },
  not: "A difference says that a head or a word read otherwise here, not why, nor whether the model’s answer depends on it.",
};

export const ko: typeof en = {
  name: "비교",
  show: "비교할 것",
  shows: { text: "본문", maps: "지도", heads: "헤드" },
  one: "기록이 하나뿐입니다. 둘을 함께 여세요: jumok view 첫째 둘째.",
  first: "첫째",
  second: "둘째",
  notShape:
    "두 기록의 층, 헤드, 크기가 서로 달라 헤드끼리 짝지을 수 없습니다. 모든 층을 합쳐 본문은 비교할 수 있습니다.",
  otherModel:
    "서로 다른 모델입니다. 한 모델을 이어서 학습한 것이 아니라면, 한쪽의 헤드 3.2와 다른 쪽의 헤드 3.2가 같은 일을 하지는 않습니다.",
  notTokens:
    "두 글의 토큰이 서로 같지 않아 칸끼리 짝지을 수 없습니다. 지도는 둘 다 보이지만 차이는 없습니다.",
  texts: {
    word: (word) => `두 글의 ‘${word}’`,
    noPartner: (word) => `둘째 글에는 ‘${word}’이(가) 없습니다. 거기에서 비교할 단어를 고르세요.`,
    table: "가장 많이 달라진 단어",
    source: "단어",
    change: "변화",
    points: "포인트",
    missing: "없음",
    only: (which) => `${which}에만 있음`,
    meaning:
      "변화는 둘째 몫에서 첫째 몫을 뺀 것으로, 퍼센트포인트입니다. 두 몫 모두 자기 글의 100%를 나눈 것이어서, 글이 길면 단어마다 돌아가는 것이 적습니다.",
    other: "글의 단어",
  },
  maps: {
    difference: "둘째 − 첫째",
    cell: (query, key) => `${query} → ${key}`,
    mean: (size) =>
      size === 1
        ? "칸 하나가 가중치 하나입니다."
        : `칸 하나는 가중치 ${size} × ${size}개의 평균이므로, 두 칸의 차이는 정확합니다.`,
    hint: "칸을 가리키거나 화살표 키로 옮겨 다니며 읽고, Enter로 지도에서 엽니다.",
    label: (which) => `어텐션 지도, ${which}: 화살표 키로 칸을 옮겨 다닙니다`,
    colours: (least) => `두 지도는 ${least}부터 1까지 같은 로그 눈금을 씁니다.`,
    more: (share) => `주황: 둘째가 최대 ${share} 더 줌`,
    less: (share) => `파랑: 최대 ${share} 덜 줌`,
  },
  heads: {
    measure: "척도",
    table: "가장 많이 달라진 헤드",
    head: "헤드",
    change: "변화",
    all: (count) => `${count}개 모두 보기`,
    line: "대각선 위의 점은 두 기록에서 같은 일을 하는 헤드입니다.",
    across: (measure) => `${measure}, 첫째`,
    up: (measure) => `${measure}, 둘째`,
  },
  not: "차이는 헤드나 단어가 여기서 다르게 읽었음을 말할 뿐, 왜 그런지 또는 모델의 답이 거기에 달렸는지를 말하지는 않습니다.",
};
