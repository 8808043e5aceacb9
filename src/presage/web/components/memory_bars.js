/* Memory of each GPU as a stacked bar against the card. */
export default {
  template: `
    <div class="bars">
      <div v-for="gpu in gpus" class="stack-row">
        <div class="stack-head"><strong>{{ gpu.name }}</strong>
          <span>{{ gpu.words }}</span><span :class="['verdict', gpu.verdict]">{{ gpu.fits }}</span></div>
        <div class="stack" role="img" :aria-label="gpu.label">
          <div class="card-room" :style="{ width: share(gpu.room) }"></div>
          <div class="parts"><i v-for="part in gpu.parts" :style="{ width: share(part.gib), background: part.colour }"
            :title="part.name + ': ' + part.gib.toFixed(1) + ' GiB'"></i></div>
          <div class="whisker" :style="{ left: share(gpu.p10), width: share(gpu.p90 - gpu.p10) }"></div>
          <div class="card-end" :style="{ left: share(gpu.room) }"></div>
        </div>
      </div>
      <ul class="legend"><li v-for="part in legend"><i :style="{ '--c': part.colour }"></i>{{ part.name }}</li>
        <li><i class="end"></i>what the card has</li></ul>
    </div>`,
  props: { gpus: Array, legend: Array },
  computed: {
    most() { return 1.02 * Math.max(...this.gpus.map((gpu) => Math.max(gpu.room, gpu.p90))); },
  },
  methods: {
    share(gib) { return Math.max(0, Math.min(100, (100 * gib) / this.most)).toFixed(2) + "%"; },
  },
};
