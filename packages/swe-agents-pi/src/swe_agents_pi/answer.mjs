// Pi extension: a tool with which the model submits its answer and ends the agent.
export default function (pi) {
  pi.registerTool({
    name: "answer",
    label: "Answer",
    description:
      "Submit your final answer and end the work. Call it exactly once, when everything is done, and " +
      "alone: never in one message with other tool calls. Nothing can be done after it.",
    parameters: {
      type: "object",
      properties: {
        text: { type: "string", description: "A short summary of what you changed and why." },
      },
      required: ["text"],
      additionalProperties: false,
    },
    async execute() {
      return { content: [{ type: "text", text: "Submitted." }], details: {}, terminate: true };
    },
  });
}
