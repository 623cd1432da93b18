// The present request as code that runs as it is copied: curl, Python, JavaScript.

export const LANGUAGES = [["curl", "curl"], ["python", "Python"], ["javascript", "JavaScript"]];

export function snippet(language, request, { baseUrl, project }) {
  return { curl, python, javascript }[language](request, baseUrl, project);
}

function curl(request, baseUrl, project) {
  const forProject = project ? `  -H "OpenAI-Project: ${project}" \\\n` : "";
  return `curl -sS ${baseUrl}/${request.input ? "responses" : "chat/completions"} \\
  -H "Authorization: Bearer $OPENAI_API_KEY" \\
  -H "Content-Type: application/json" \\
${forProject}  --data-binary @- <<'JSON'
${JSON.stringify(request, null, 2)}
JSON
`;
}

function python(request, baseUrl, project) {
  const forProject = project ? `    project=${literal(project)},\n` : "";
  return `import os

from openai import OpenAI

client = OpenAI(
    base_url=${literal(baseUrl)},
    api_key=os.environ["OPENAI_API_KEY"],
${forProject})
answer = client.${method(request)}.create(
${fields(request, (name, value) => `    ${name}=${literal(value, "    ")},`)}
)
print(${request.input ? "answer.output_text" : "answer.choices[0].message.content"})
`;
}

function javascript(request, baseUrl, project) {
  const forProject = project ? `  project: ${JSON.stringify(project)},\n` : "";
  return `import OpenAI from "openai";

const client = new OpenAI({
  baseURL: ${JSON.stringify(baseUrl)},
  apiKey: process.env.OPENAI_API_KEY,
${forProject}});
const answer = await client.${method(request)}.create(${JSON.stringify(request, null, 2)});
console.log(${request.input ? "answer.output_text" : "answer.choices[0].message.content"});
`;
}

const method = (request) => (request.input ? "responses" : "chat.completions");
const fields = (request, line) => Object.entries(request).map(([name, value]) => line(name, value)).join("\n");

// A JSON text is a Python text too; numbers are the same.
function literal(value, indent = "") {
  const deeper = `${indent}    `;
  if (Array.isArray(value)) {
    if (value.every((item) => typeof item !== "object")) return `[${value.map((item) => literal(item)).join(", ")}]`;
    return `[\n${value.map((item) => `${deeper}${literal(item, deeper)},\n`).join("")}${indent}]`;
  }
  if (value && typeof value === "object") {
    return `{${fields(value, (name, inner) => `${JSON.stringify(name)}: ${literal(inner, deeper)}`).replaceAll("\n", ", ")}}`;
  }
  if (typeof value === "boolean") return value ? "True" : "False";
  return value === null ? "None" : JSON.stringify(value);
}
