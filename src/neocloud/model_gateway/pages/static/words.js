// A headline for each error. The message of the gateway is shown below it.

// hasBegun: part of the response came before.
export function headline(error, hasBegun = false) {
  const { status, code, retryAfter } = error;
  if (status === 0) return "The gateway is not reachable.";
  if (status === 401) return "You are signed out.";
  if (code === "insufficient_quota") return "The token budget is used up.";
  if (status === 429 && retryAfter) return `Rate limit reached. Try again in ${retryAfter} s.`;
  if (status === 429) return "Rate limit reached.";
  if (code === "context_length_exceeded") return "This conversation is too long for the model.";
  if (status === 400 || status === 413 || status === 422) return "The request is not valid for this model.";
  if (status === 403) return "You do not have access to this model.";
  if (status === 404) return "This model no longer exists.";
  if (status === 503) return "The model is not ready.";
  if (!hasBegun && code !== "connection_lost") return "The model could not answer.";
  return "The response was interrupted.";
}
