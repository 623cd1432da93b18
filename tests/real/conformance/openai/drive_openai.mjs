// Drives the gateway with OpenAI's JavaScript SDK, unmodified. Prints one JSON object: what each call gave.
//
//   node drive_openai.mjs FOLDER_OF_THE_SDK
//
// Address and key come from the environment, as the SDK reads them.
import { createRequire } from "node:module";
import { File } from "node:buffer";

globalThis.File ??= File; // older Node.js does not have it yet, and the SDK's uploads need it
const { default: OpenAI, toFile } = createRequire(`${process.argv[2]}/package.json`)("openai");
const client = new OpenAI({ maxRetries: 0 });
const messages = [{ role: "user", content: "one two three" }];
const found = {};

const models = await client.models.list();
found.models = models.data.map((model) => model.id);

const { data: chat, response } = await client.chat.completions
  .create({ model: "bank", messages, temperature: 0.6, max_tokens: 3 })
  .withResponse();
found.chat = chat.choices[0].message.content;
found.usage = chat.usage;
found.limit = response.headers.get("x-ratelimit-limit-tokens");

found.stream = "";
for await (const chunk of await client.chat.completions.create({ model: "bank", messages, stream: true })) {
  found.stream += chunk.choices[0]?.delta?.content ?? "";
}

const tools = [{ type: "function", function: { name: "balance_of", parameters: { type: "object" } } }];
const called = await client.chat.completions
  .stream({ model: "tools", messages, tools })
  .finalChatCompletion();
found.call = called.choices[0].message.tool_calls[0].function;

const structured = await client.chat.completions.parse({
  model: "tools",
  messages,
  response_format: { type: "json_schema", json_schema: { name: "place", strict: true, schema: { type: "object" } } },
});
found.parsed = structured.choices[0].message.parsed;

const embedded = await client.embeddings.create({ model: "embedder", input: "one" , encoding_format: "float" });
const packed = await client.embeddings.create({ model: "embedder", input: ["one", "two"] });
found.packed = packed.data.map((each) => each.embedding);
found.embedding = embedded.data[0].embedding;

const lines = [0, 1, 2].map((n) => ({
  custom_id: `js-${n}`,
  method: "POST",
  url: "/v1/chat/completions",
  body: { model: "bank", messages, max_tokens: 2 },
}));
const text = lines.map((line) => JSON.stringify(line)).join("\n");
const file = await client.files.create({ file: await toFile(Buffer.from(text), "js.jsonl"), purpose: "batch" });
found.file = file.bytes === Buffer.byteLength(text) && (await client.files.retrieve(file.id)).filename;

let batch = await client.batches.create({
  input_file_id: file.id,
  endpoint: "/v1/chat/completions",
  completion_window: "24h",
});
for (let n = 0; n < 500 && ["validating", "in_progress", "finalizing"].includes(batch.status); n++) {
  await new Promise((resolve) => setTimeout(resolve, 20));
  batch = await client.batches.retrieve(batch.id);
}
found.batch = batch.status;
const output = await (await client.files.content(batch.output_file_id)).text();
found.answered = output.trim().split("\n").map((line) => JSON.parse(line).custom_id).sort();
found.deleted = (await client.files.delete(file.id)).deleted;

const talk = { messages: [...messages, { role: "assistant", content: "four" }] };
const training = await client.files.create({
  file: await toFile(Buffer.from(JSON.stringify(talk)), "t.jsonl"),
  purpose: "fine-tune",
});
const job = await client.fineTuning.jobs.create({ model: "bank", training_file: training.id });
found.job = job.status;
found.events = (await client.fineTuning.jobs.listEvents(job.id)).data.map((event) => event.message);
found.cancelled = (await client.fineTuning.jobs.cancel(job.id)).status;

const failing = {
  unknown: () => client.chat.completions.create({ model: "none", messages }),
  cold: () => client.chat.completions.create({ model: "cold", messages }),
  wrong: () => new OpenAI({ apiKey: "wrong", maxRetries: 0 }).models.list(),
};
found.errors = {};
for (const [name, call] of Object.entries(failing)) {
  found.errors[name] = await call().then(
    () => "no error",
    (error) => [error.constructor.name, error.status, error.code],
  );
}
console.log(JSON.stringify(found));
