// Plays the chunk scripts that it is given on standard input through @librechat/agents, and prints what it took.
//
// Input: what `script` in bench/typescript.py makes; output: one JSON object.

import { performance } from 'node:perf_hooks';
import { GraphEvents, HookRegistry, Providers, Run } from '@librechat/agents';
import { BaseChatModel } from '@langchain/core/language_models/chat_models';
import { AIMessageChunk, HumanMessage } from '@langchain/core/messages';
import { ChatGenerationChunk } from '@langchain/core/outputs';

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const CONTENTS = {
  text: 'word ',
  whitespace: ' ',
  reasoning: [{ type: 'thinking', thinking: 'word ', index: 0 }],
};

function message(kind, place, size) {
  if (kind !== 'tool arguments') return new AIMessageChunk({ content: CONTENTS[kind] });
  const args = place === 0 ? '{"text": "' : place === size - 1 ? '"}' : 'word ';
  const first = place === 0 ? { name: 'search', id: 'call_1' } : {};
  const part = { args, index: 0, type: 'tool_call_chunk', ...first };
  return new AIMessageChunk({ content: '', tool_call_chunks: [part] });
}

const cpu = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e3;
};

class ScriptModel extends BaseChatModel {
  constructor({ kind = 'text', size, gapMs = 0, silentAfter, silentMs = 0 }) {
    super({});
    Object.assign(this, { kind, size, gapMs, silentAfter, silentMs, chunks: [] });
    this.deadline = Infinity;
    this.ended = null;
  }

  _llmType() {
    return 'script';
  }

  bindTools() {
    return this;
  }

  async _generate() {
    throw new Error('only streams');
  }

  refill() {
    const content = CONTENTS[this.kind];
    const text = typeof content === 'string' ? content : '';
    this.chunks = Array.from(
      { length: this.size },
      (_, place) => new ChatGenerationChunk({ text, message: message(this.kind, place, this.size) })
    );
  }

  async *_streamResponseChunks(messages) {
    if (messages.at(-1).getType() === 'tool') {
      yield new ChatGenerationChunk({ text: 'Done.', message: new AIMessageChunk({ content: 'Done.' }) });
      return;
    }
    for (const [number, chunk] of this.chunks.entries()) {
      if (this.gapMs > 0) await sleep(number === this.silentAfter ? this.silentMs : this.gapMs);
      if (this.deadline !== Infinity && cpu() > this.deadline) {
        this.ended ??= { chunk: number, cpu: cpu() };
        throw new Error('the time is up');
      }
      yield chunk;
    }
  }
}

async function run(model, { preemption, onBoundary, onToken } = {}) {
  const runId = crypto.randomUUID();
  const hooks = new HookRegistry();
  hooks.register('PreemptBoundary', { hooks: [async () => onBoundary?.() ?? {}] });
  const customHandlers = {};
  if (onToken) customHandlers[GraphEvents.ON_MESSAGE_DELTA] = { handle: onToken };
  const made = await Run.create({
    runId,
    graphConfig: { type: 'standard', llmConfig: { provider: Providers.OPENAI, model: 'none', apiKey: 'none' } },
    returnContent: true,
    skipCleanup: true,
    customHandlers,
    hooks,
    preemption,
    // Otherwise a tool call of more than 64 KiB is an error.
    streamLimits: { maxToolCallArgBytes: 0 },
    tokenCounter: (message) => String(message.content).length,
  });
  made.Graph.overrideModel = model;
  const config = { runId, configurable: { thread_id: runId }, streamMode: 'values', version: 'v2' };
  await made.processStream({ messages: [new HumanMessage('Go on.')] }, config);
  return made;
}

async function loop(model) {
  for await (const _ of await model.stream([new HumanMessage('Go on.')]));
}

const asking = (answer) => ({ shouldPreempt: () => answer, subscribe: () => () => {} });
const enough = () => ({ preventContinuation: true, stopReason: 'measured' });
const WAYS = {
  bare: (model) => loop(model),
  off: (model) => run(model),
  on: (model) => run(model, { preemption: asking(false) }),
  waiting: (model) => run(model, { preemption: asking(true), onBoundary: enough }),
};

async function perChunk({ kind, size, order, warmUps, limitMs }) {
  const taken = {};
  const ended = {};
  const model = new ScriptModel({ kind, size });
  for (const [round, ways] of order.entries()) {
    for (const way of ways) {
      model.refill();
      model.ended = null;
      globalThis.gc?.();
      const began = cpu();
      model.deadline = began + (limitMs ?? Infinity);
      try {
        await WAYS[way](model);
      } catch (error) {
        if (model.ended === null) throw error;
      }
      if (model.ended !== null) ended[way] = { chunk: model.ended.chunk, ms: model.ended.cpu - began };
      else if (round >= warmUps) (taken[way] ??= []).push(cpu() - began);
    }
  }
  return { taken, ended };
}

async function halted({ gapMs, silentAfter, silentMs, moment }) {
  let armed = false;
  let armedAt = 0;
  let sealedAt = 0;
  let tokens = 0;
  let late = 0;
  let lastAt = 0;
  const wakes = new Set();
  const model = new ScriptModel({ size: 400, gapMs, silentAfter, silentMs });
  model.refill();
  const arm = () => {
    armed = true;
    armedAt = performance.now();
    for (const wake of wakes) wake();
  };
  await run(model, {
    preemption: {
      shouldPreempt: () => armed,
      subscribe: (wake) => {
        wakes.add(wake);
        return () => wakes.delete(wake);
      },
    },
    onBoundary: () => {
      sealedAt = performance.now();
      armed = false;
      return { preventContinuation: true, stopReason: 'measured' };
    },
    onToken: () => {
      tokens += 1;
      if (tokens === moment.after) setTimeout(arm, moment.delayMs);
      if (armedAt > 0) {
        late += 1;
        lastAt = performance.now();
      }
    },
  });
  return {
    late,
    last_ms: late > 0 ? lastAt - armedAt : 0,
    sealed_ms: sealedAt > 0 ? sealedAt - armedAt : null,
  };
}

const asked = JSON.parse(await new Response(process.stdin).text());
const found = { per_chunk: {}, ended: {}, latency: {} };
for (const [kind, scripts] of Object.entries(asked.scripts)) {
  found.per_chunk[kind] = {};
  found.ended[kind] = {};
  for (const script of scripts) {
    const { taken, ended } = await perChunk({ kind, ...script });
    found.per_chunk[kind][script.size] = taken;
    found.ended[kind][script.size] = ended;
  }
}
for (const [name, provider] of Object.entries(asked.providers)) {
  found.latency[name] = [];
  for (const moment of provider.moments) found.latency[name].push(await halted({ ...provider, moment }));
}
process.stdout.write(`${JSON.stringify(found)}\n`, () => process.exit(0));
