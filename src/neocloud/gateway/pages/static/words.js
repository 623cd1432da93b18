// What a refusal means, for people. The gateway's own words go below.

export function headline(error) {
  const { status, code, retryAfter } = error;
  if (status === 0) return "The gateway does not answer.";
  if (status === 401) return "You are signed out.";
  if (code === "insufficient_quota") return "The budget for tokens is spent.";
  if (status === 429 && retryAfter) return `Too much at once: try again in ${retryAfter} s.`;
  if (status === 429) return "This is more than your limit allows.";
  if (code === "context_length_exceeded") return "This conversation is too long for the model.";
  if (status === 400 || status === 413 || status === 422) return "The request does not fit this model.";
  if (status === 403) return "You may not use this model.";
  if (status === 404) return "There is no such model any more.";
  if (status === 503) return "The model is not ready.";
  return "The answer broke off.";
}
