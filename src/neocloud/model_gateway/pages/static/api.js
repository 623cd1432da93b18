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

export const vectorStores = async (project) => (await (await send("/v1/vector_stores?limit=100", { project })).json()).data;

// The chunks of a streamed answer, as they come. began: called with the id of the request.
export async function* chat(body, options) {
  const fields = { ...body, stream: true, stream_options: { include_usage: true } };
  for await (const data of streamed("/v1/chat/completions", fields, options)) {
    if (data === "[DONE]") return;
    yield JSON.parse(data);
  }
  throw new Refused(502, "The response ended early.", "connection_lost");
}

// An answer from documents, as chunks of the same form; `sources` come before the text.
export async function* respond(body, options) {
  for await (const data of streamed("/v1/responses", { ...body, stream: true }, options)) {
    const event = JSON.parse(data);
    const item = event.item ?? {};
    if (event.type === "response.output_item.done" && item.type === "file_search_call") yield { sources: item.results ?? [] };
    if (event.type === "response.output_text.delta") yield { choices: [{ delta: { content: event.delta } }] };
    if (event.type === "response.failed") throw new Refused(502, event.response.error?.message ?? "The model failed.");
    if (["response.completed", "response.incomplete"].includes(event.type)) {
      const { input_tokens: prompt_tokens, output_tokens: completion_tokens } = event.response.usage ?? {};
      const finish_reason = event.type === "response.incomplete" ? "length" : "stop";
      yield { choices: [{ delta: {}, finish_reason }], usage: { prompt_tokens, completion_tokens } };
      return;
    }
  }
  throw new Refused(502, "The response ended early.", "connection_lost");
}

async function* streamed(path, fields, { project, signal, began }) {
  const response = await send(path, { method: "POST", fields, project, signal });
  began?.(response.headers.get("x-request-id"));
  try {
    for await (const data of events(response.body)) {
      if (data !== "[DONE]") {
        const { error } = JSON.parse(data);
        if (error) throw new Refused(502, error.message, error.code);
      }
      yield data;
    }
  } catch (error) {
    if (signal?.aborted || error instanceof Refused) throw error;
    throw new Refused(502, "The connection to the gateway was lost.", "connection_lost");
  }
}
