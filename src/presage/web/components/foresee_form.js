/* What a page asks to be foreseen. The state is in the address, so that a link can be shared. */
const SLIDERS = {
  batch: ["Batch of a replica", 0, 10], seq: ["Tokens of a sample", 7, 17],
  gpus: ["GPUs", 0, 10], accumulate: ["Accumulated micro-batches", 0, 8],
};
const SERVED = {
  concurrency: ["Sequences at once", 0, 10], kv_len: ["Tokens of a sequence", 7, 17], gpus: ["GPUs", 0, 10],
};
const OF_TRAINING = ["optimizer", "sharding", "checkpoint", "lora", "targets"];
const CHOICES = {
  use: ["Use", ["training", "serving"]],
  precision: ["Precision", { "": "usual", fp32: "fp32", tf32: "tf32", amp: "amp (fp16)", "amp-bf16": "amp-bf16",
    bf16: "bf16", fp16: "fp16", fp8: "fp8" }],
  optimizer: ["Optimizer", ["adamw", "adamw-fused", "adamw-8bit", "paged-adamw-8bit", "adam", "adafactor", "lion",
    "sgd", "momentum"]],
  sharding: ["Sharding", { none: "none", ddp: "DDP", zero1: "ZeRO-1", zero2: "ZeRO-2", zero3: "ZeRO-3", fsdp: "FSDP" }],
  tp: ["Tensor parallel", [1, 2, 4, 8]], pp: ["Pipeline stages", [1, 2, 4, 8, 16]],
  checkpoint: ["Checkpointing", ["none", "selective", "full"]],
  lora: ["LoRA rank", { 0: "no LoRA", 4: "4", 8: "8", 16: "16", 32: "32", 64: "64", 128: "128", 256: "256" }],
  targets: ["LoRA on", { all: "all projections", attention: "q, k, v, o", "q,v": "q, v" }],
  quant: ["Frozen weights", { none: "not quantized", nf4: "nf4", int8: "int8" }],
};
const WISHES = {
  amount: ["To see in all", "2B", "text"], global_batch: ["Global batch", "usual", "number"],
  deadline: ["Deadline", "24h", "text"], budget: ["Budget (USD)", "500", "number"],
  max_gpus: ["At most GPUs", "64", "number"],
};
export default {
  template: `
    <form class="foresee" @submit.prevent="$emit('plan', state)">
      <label class="field model">Model
        <input v-model.trim="state.model" list="models" name="model" maxlength="200" autocomplete="off"
               spellcheck="false" placeholder="hf:meta-llama/Llama-3.1-8B or zoo:resnet50"></label>
      <datalist id="models"><option v-for="name in names" :value="name"></option></datalist>
      <div class="field kinds"><span id="kinds-label">Kinds of GPU</span>
        <div class="chips" role="group" aria-labelledby="kinds-label">
          <button v-for="kind in kinds" type="button" :aria-label="'Remove ' + kind" @click="drop(kind)">{{ kind }} ×</button>
          <select aria-label="Add a GPU" :disabled="kinds.length >= 6" @change="add">
            <option value="">add …</option>
            <option v-for="kind in others" :value="kind">{{ kind }}</option></select>
        </div></div>
      <div class="sliders">
        <div v-for="(about, key) in sliders" class="field"><span aria-hidden="true">{{ about[0] }}</span>
          <span class="slider">
            <input type="range" :min="about[1]" :max="about[2]" step="1" :value="power(key)" :aria-label="about[0] + ', slider'"
                   @input="state[key] = 2 ** Number($event.target.value)">
            <input type="number" min="1" :name="key" v-model.number="state[key]" :aria-label="about[0]"
                   :placeholder="['seq', 'kv_len'].includes(key) ? 'usual' : ''">
          </span></div>
      </div>
      <div class="choices">
        <label v-for="(about, key) in choices" class="field">{{ about[0] }}
          <select :name="key" v-model="state[key]" :disabled="idle(key)">
            <option v-for="(word, value) in options(about[1])" :value="value">{{ word }}</option></select></label>
      </div>
      <details v-if="!serves" class="wish" :open="wished"><summary>Plan the whole training</summary>
        <div class="choices">
          <label v-for="(about, key) in wishes" class="field">{{ about[0] }}
            <input :type="about[2]" min="1" :name="key" v-model.trim="state[key]" :placeholder="about[1]" maxlength="40"></label>
          <label class="field">Counted in
            <select name="unit" v-model="state.unit"><option>tokens</option><option>samples</option></select></label>
        </div>
        <p class="soft">Looks at every sensible number of GPUs, sharding, checkpointing and micro-batch.</p>
        <button class="primary" type="submit" :disabled="planning">{{ planning ? "Planning …" : "Plan" }}</button>
      </details>
      <div class="row-of-buttons"><button type="button" @click="copy">{{ copied ? "Copied" : "Copy the link" }}</button></div>
    </form>`,
  props: { initial: Object, usual: Object, names: Array, gpus: Array, planning: Boolean },
  data() {
    return { state: { ...this.initial }, copied: false, timer: null, wished: Boolean(this.initial.amount) };
  },
  computed: {
    serves() { return this.state.use === "serving"; },
    sliders() { return this.serves ? SERVED : SLIDERS; },
    choices: () => CHOICES,
    wishes: () => WISHES,
    kinds() { return String(this.state.kinds).split(",").filter(Boolean); },
    others() { return (this.gpus || []).filter((kind) => !this.kinds.includes(kind)); },
  },
  watch: {
    state: {
      deep: true,
      handler() {
        clearTimeout(this.timer);
        this.timer = setTimeout(this.ask, 250);
      },
    },
  },
  mounted() { this.ask(); },
  methods: {
    ask() {
      const query = new URLSearchParams();
      for (const [key, value] of Object.entries(this.state)) {
        if (value !== null && value !== "" && String(value) !== String(this.usual[key])) query.set(key, value);
      }
      const text = query.toString();
      history.replaceState(history.state, "", text ? "?" + text : location.pathname);
      this.$emit("question", { ...this.state });
    },
    options(values) {
      return Array.isArray(values) ? Object.fromEntries(values.map((value) => [value, String(value)])) : values;
    },
    power(key) { return Math.round(Math.log2(Math.max(1, Number(this.state[key]) || (["seq", "kv_len"].includes(key) ? 4096 : 1)))); },
    idle(key) {
      if (this.serves && OF_TRAINING.includes(key)) return true;
      if (this.serves && key === "quant") return false;
      if (["sharding", "tp", "pp"].includes(key)) return Number(this.state.gpus) < 2;
      if (["targets", "quant"].includes(key)) return String(this.state.lora) === "0";
      return false;
    },
    add(event) {
      if (event.target.value) this.state.kinds = [...this.kinds, event.target.value].join(",");
      event.target.value = "";
    },
    drop(kind) {
      if (this.kinds.length > 1) this.state.kinds = this.kinds.filter((one) => one !== kind).join(",");
    },
    async copy() {
      try {
        await navigator.clipboard.writeText(location.href);
        this.copied = true;
        setTimeout(() => { this.copied = false; }, 2000);
      } catch { prompt("The link", location.href); }
    },
  },
};
