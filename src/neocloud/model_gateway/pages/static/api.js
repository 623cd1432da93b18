// The gateway, as the page may speak to it. The session is a cookie that scripts cannot read.
import { events } from "./stream.js";

export class Refused extends Error {
  constructor(status, message, code = "", retryAfter = 0) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

async function send(path, { method = "GET", fields, project, signal } = {}) {
  const headers = {};
  if (fields) headers["Content-Type"] = "application/json";
  if (project) headers["OpenAI-Project"] = project;
  let response;
  try {
    const body = fields && JSON.stringify(fields);
    response = await fetch(`/chat${path}`, { method, headers, body, signal, cache: "no-store" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "The gateway is not reachable. Check the cloud with `neo status`.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const retryAfter = Number(response.headers.get("retry-after")) || 0;
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // A refusal that is no JSON: its status says enough.
  }
  return new Refused(response.status, error.message ?? `The gateway returned status ${response.status}.`, error.code, retryAfter);
}

export const signIn = async (fields) => (await send("/session", { method: "POST", fields })).json();
export const who = async () => (await send("/session")).json();
export const signOut = () => send("/session", { method: "DELETE" });
export const models = async (signal) => (await (await send("/v1/models", { signal })).json()).data;

// What the reader thinks of an answer.
export const rate = (fields) => send("/v1/feedback", { method: "POST", fields });

// The chunks of a streamed answer, as they come. began: called with the id of the request.
export async function* chat(body, { project, signal, began }) {
  const fields = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await send("/v1/chat/completions", { method: "POST", fields, project, signal });
  began?.(response.headers.get("x-request-id"));
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refused(502, chunk.error.message, chunk.error.code);
      yield chunk;
    }
  } catch (error) {
    if (signal?.aborted || error instanceof Refused) throw error;
    throw new Refused(502, "The connection to the gateway was lost.", "connection_lost");
  }
  throw new Refused(502, "The response ended early.", "connection_lost");
}
