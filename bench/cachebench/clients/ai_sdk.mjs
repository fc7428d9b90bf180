// The AI SDK with the cache settings of its providers' pages: a marker on the tools, the system prompt
// and the last message. node ai_sdk.mjs PROVIDER MODEL URL, in the folder of its node_modules.
import { createRequire } from "node:module";
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [provider, model, url] = process.argv.slice(2);
// The packages are in another folder than this file.
const resolve = createRequire(path.join(process.env.CACHEBENCH_MODULES, "..", "here.cjs")).resolve;
const load = (name) => import(pathToFileURL(resolve(name)));
const { generateText, jsonSchema, tool } = await load("ai");

async function chosenModel() {
  if (provider === "anthropic") {
    const { createAnthropic } = await load("@ai-sdk/anthropic");
    return createAnthropic({ baseURL: `${url}/v1`, apiKey: "k" })(model);
  }
  if (provider === "gemini") {
    const { createGoogle, createGoogleGenerativeAI } = await load("@ai-sdk/google");
    return (createGoogle || createGoogleGenerativeAI)({ baseURL: `${url}/v1beta`, apiKey: "k" })(model);
  }
  if (provider === "deepseek") {
    const { createDeepSeek } = await load("@ai-sdk/deepseek");
    return createDeepSeek({ baseURL: `${url}/deepseek`, apiKey: "k" })(model);
  }
  if (provider === "bedrock") {
    const { createAmazonBedrock } = await load("@ai-sdk/amazon-bedrock");
    return createAmazonBedrock({
      baseURL: url,
      region: "us-east-1",
      accessKeyId: "AKIAIOSFODNN7EXAMPLE",
      secretAccessKey: "k",
    })(model);
  }
  const { createOpenAI } = await load("@ai-sdk/openai");
  return createOpenAI({ baseURL: `${url}/v1`, apiKey: "k" }).chat(model);
}

const MARKERS = {
  anthropic: { anthropic: { cacheControl: { type: "ephemeral" } } },
  bedrock: { bedrock: { cachePoint: { type: "default" } } },
  "openai-breakpoints": { openai: { promptCacheBreakpoint: { mode: "explicit" } } },
};
const marker = MARKERS[provider];
const chosen = await chosenModel();

function native(given, names) {
  if (given.role === "user") return [{ role: "user", content: [{ type: "text", text: given.text }] }];
  if (given.role === "tool") {
    const content = given.results.map((result) => ({
      type: "tool-result",
      toolCallId: result.id,
      toolName: names[result.id] || "tool",
      output: { type: "text", value: result.text },
    }));
    return [{ role: "tool", content }];
  }
  const content = given.text ? [{ type: "text", text: given.text }] : [];
  for (const call of given.calls) {
    names[call.id] = call.name;
    content.push({ type: "tool-call", toolCallId: call.id, toolName: call.name, input: call.arguments });
  }
  return [{ role: "assistant", content }];
}

function toolSet(given) {
  const tools = {};
  given.forEach((each, index) => {
    const options = { description: each.about, inputSchema: jsonSchema(each.schema) };
    if (index === given.length - 1 && provider === "anthropic") options.providerOptions = marker;
    tools[each.name] = tool(options);
  });
  return tools;
}

// As the page of `prepareStep` marks the last message.
function marked(messages) {
  if (!marker) return messages;
  const last = messages.length - 1;
  return messages.map((message, index) => {
    if (index !== last) return message;
    if (provider === "openai-breakpoints" && message.role === "user") {
      const content = message.content.map((part) => ({ ...part, providerOptions: marker }));
      return { ...message, content };
    }
    return { ...message, providerOptions: marker };
  });
}

let conversations = {};
const tools = new Map();

async function call(request) {
  const state = (conversations[request.conversation] ??= { history: [], ids: {}, names: {}, reply: null });
  const own = (given) => {
    if (given.reply) return state.reply;
    if (given.role !== "tool") return native(given, state.names);
    const results = given.results.map((result) => ({ ...result, id: state.ids[result.id] || result.id }));
    return native({ ...given, results }, state.names);
  };
  state.history.length = Math.min(state.history.length, request.keep);
  state.history.push(...request.new.map(own));
  const tail = request.tail.map(own);
  const key = JSON.stringify(request.tools);
  if (!tools.has(key)) tools.set(key, toolSet(request.tools));
  const recorded = request.reply;
  let ids = recorded.calls.map((each) => each.id);
  const answer = {};
  const began = process.cpuUsage();
  try {
    const messages = marked([...state.history, ...tail].flat());
    const system = { role: "system", content: request.system };
    if (marker) system.providerOptions = marker;
    const result = await generateText({
      model: chosen,
      instructions: request.system ? system : undefined,
      messages,
      tools: tools.get(key),
      maxOutputTokens: 4096,
      maxRetries: 0,
    });
    state.reply = result.response.messages;
    if (result.toolCalls.length === ids.length) ids = result.toolCalls.map((each) => each.toolCallId);
    for (const each of result.toolCalls) state.names[each.toolCallId] = each.toolName;
  } catch (problem) {
    state.reply = native(recorded, state.names);
    answer.error = String(problem).slice(0, 500);
  }
  const spent = process.cpuUsage(began);
  answer.cpu = (spent.user + spent.system) / 1e6;
  recorded.calls.forEach((each, index) => (state.ids[each.id] = ids[index]));
  return answer;
}

const write = (value) => process.stdout.write(JSON.stringify(value) + "\n");
console.log = console.info = console.warn = console.error;
globalThis.AI_SDK_LOG_WARNINGS = false;
write({});
for await (const line of readline.createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  if (request.begin) {
    conversations = {};
    write({});
  } else write(await call(request));
}
