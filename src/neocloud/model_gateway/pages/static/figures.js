// How fast an answer was and what it cost.

// Dollars: each token's price is for a million of them. null: there is no price.
export function cost(usage, pricing) {
  if (!pricing || !usage) return null;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const dollars =
    (usage.prompt_tokens - cached) * Number(pricing.input) +
    cached * Number(pricing.cached_input) +
    usage.completion_tokens * Number(pricing.output);
  return dollars / 1e6;
}

// While it was writing: the first token is what the others are counted from.
export function tokensPerSecond(tokens, firstMs, totalMs) {
  const writing = totalMs - firstMs;
  if (tokens > 1 && writing > 0) return ((tokens - 1) * 1000) / writing;
  return totalMs > 0 ? (tokens * 1000) / totalMs : 0;
}

export const seconds = (ms) => (ms < 995 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 9950 ? 2 : 1)} s`);

export function money(dollars) {
  if (dollars === 0) return "$0";
  if (dollars >= 1) return `$${dollars.toFixed(2)}`;
  const places = Math.min(12, 2 - Math.floor(Math.log10(dollars)));
  return `$${dollars.toFixed(places).replace(/0+$/, "").replace(/\.$/, "")}`;
}

export function costWords(usage, pricing) {
  if (!pricing) return "unpriced";
  if (pricing.charge === "by_hour") return "by the hour";
  return usage ? money(cost(usage, pricing)) : "–";
}

// Names and values to show of an answer; "≈" where the page had to count by itself.
export function figures(answer) {
  const { firstMs, totalMs, usage, pieces, pricing } = answer;
  const about = usage ? "" : "≈ ";
  const tokens = usage ? usage.completion_tokens : pieces;
  return [
    ["First token", firstMs === null ? "–" : seconds(firstMs)],
    ["Total", seconds(totalMs)],
    ["Tokens/s", tokens ? about + tokensPerSecond(tokens, firstMs ?? totalMs, totalMs).toFixed(1) : "–"],
    ["Tokens in", usage ? usage.prompt_tokens.toLocaleString("en") : "–"],
    ["Tokens out", about + tokens.toLocaleString("en")],
    ["Cost", costWords(usage, pricing)],
  ];
}
