// The official SDKs for Node, each with a whole and a streamed call: node through_sdks.cjs NAME
const QUESTION = process.argv[3] || "Say something.";

const calls = {
  async anthropic() {
    const Anthropic = require("@anthropic-ai/sdk");
    const client = new (Anthropic.default || Anthropic)();
    const asked = {
      model: "claude-sonnet-5",
      max_tokens: 100,
      system: [{ type: "text", text: "Be brief.", cache_control: { type: "ephemeral" } }],
      messages: [{ role: "user", content: QUESTION }],
    };
    console.log((await client.messages.create(asked)).content[0].text);
    console.log(await client.messages.stream(asked).finalText());
  },
  async openai() {
    const OpenAI = require("openai");
    const client = new (OpenAI.default || OpenAI)();
    console.log((await client.responses.create({ model: "gpt-5.1", input: QUESTION })).output_text);
    const messages = [{ role: "user", content: QUESTION }];
    const stream = await client.chat.completions.create({ model: "gpt-5.1", messages, stream: true });
    for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content || "");
    console.log();
  },
  async google() {
    const { GoogleGenAI } = require("@google/genai");
    const client = new GoogleGenAI({ apiKey: process.env.GEMINI_API_KEY });
    const asked = { model: "gemini-2.5-flash", contents: QUESTION };
    console.log((await client.models.generateContent(asked)).text);
    for await (const chunk of await client.models.generateContentStream(asked))
      process.stdout.write(chunk.text || "");
    console.log();
  },
};

calls[process.argv[2]]().catch((problem) => {
  console.error(problem);
  process.exit(1);
});
