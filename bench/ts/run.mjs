// Plays the chunk scripts that it is given on standard input through @librechat/agents, and prints what it took.
//
// Input: {"chunks", "sizes", "rounds", "gapMs", "tries", "silentAfter", "silentMs", "moments"}; output: one JSON object.

import { performance } from 'node:perf_hooks';
import { GraphEvents, HookRegistry, Providers, Run } from '@librechat/agents';
import { BaseChatModel } from '@langchain/core/language_models/chat_models';
import { AIMessageChunk, HumanMessage } from '@langchain/core/messages';
import { ChatGenerationChunk } from '@langchain/core/outputs';

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const content = (kind) => (kind === 'text' ? 'word ' : [{ type: 'text', text: 'word ', index: 0 }]);
const cpu = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e3;
};

class ScriptModel extends BaseChatModel {
  constructor({ kind = 'text', size, gapMs = 0, silentAfter, silentMs = 0 }) {
    super({});
    Object.assign(this, { kind, size, gapMs, silentAfter, silentMs, chunks: [] });
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
    const text = this.kind === 'text' ? 'word ' : '';
    this.chunks = Array.from(
      { length: this.size },
      () => new ChatGenerationChunk({ text, message: new AIMessageChunk({ content: content(this.kind) }) })
    );
  }

  async *_streamResponseChunks() {
    for (const [number, chunk] of this.chunks.entries()) {
      if (this.gapMs > 0) await sleep(number === this.silentAfter ? this.silentMs : this.gapMs);
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

const never = { shouldPreempt: () => false, subscribe: () => () => {} };
const WAYS = {
  bare: (model) => loop(model),
  off: (model) => run(model),
  on: (model) => run(model, { preemption: never }),
};

async function perChunk({ kind, size, rounds, order }) {
  const taken = { bare: [], off: [], on: [] };
  const model = new ScriptModel({ kind, size });
  for (let round = 0; round <= rounds; round += 1) {
    for (const way of order[round % order.length]) {
      model.refill();
      globalThis.gc?.();
      const began = cpu();
      await WAYS[way](model);
      if (round > 0) taken[way].push(cpu() - began);
    }
  }
  return taken;
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
const found = { per_chunk: {}, growth: {}, latency: [], silent: [] };
for (const kind of asked.kinds) {
  found.per_chunk[kind] = await perChunk({ ...asked, kind, size: asked.chunks });
}
for (const size of asked.sizes) {
  found.growth[size] = (await perChunk({ ...asked, kind: 'text', size, rounds: asked.growthRounds })).on;
}
for (const moment of asked.moments) {
  found.latency.push(await halted({ gapMs: asked.gapMs, moment }));
}
for (const moment of asked.moments) {
  const still = { after: asked.silentAfter, delayMs: asked.gapMs * 2 };
  found.silent.push(await halted({ ...asked, moment: still }));
  if (found.silent.length >= asked.silentTries) break;
}
process.stdout.write(`${JSON.stringify(found)}\n`, () => process.exit(0));
