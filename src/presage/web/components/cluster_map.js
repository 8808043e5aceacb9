/* Nodes as boxes, devices as cells. One tab stop: the arrow keys move between nodes.

   The boxes are written as HTML by hand and replaced one by one, since a component for each of a
   thousand nodes takes a second of the first paint. Everything that comes from outside is escaped. */
const COLOURS = [
  "#3b82f6", "#d97706", "#10b981", "#ef4444", "#8b5cf6",
  "#0891b2", "#db2777", "#65a30d", "#ea580c", "#475569",
];
const SIGNS = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escaped = (text) => String(text).replace(/[&<>"']/g, (sign) => SIGNS[sign]);
const byNumber = (jobs) => Object.fromEntries(jobs.map((job) => [job.number, job]));

export default {
  template: `
    <div>
      <div class="tools">
        <label>Find a node, job or owner
          <input type="search" v-model="text" maxlength="100" autocomplete="off"></label>
        <label>Colours
          <select v-model="by"><option value="owner">by owner</option>
            <option value="queue">by queue</option><option value="id">by job</option></select></label>
        <span class="soft" role="status">{{ shown.length }} of {{ count }} nodes</span>
      </div>
      <div class="map-grid" :class="{ compact: count > 150 }" role="listbox" aria-label="Nodes" tabindex="0" ref="grid"
           :aria-activedescendant="chosen === null ? null : 'node-' + chosen"
           @keydown="key" @click="click"></div>
      <ul class="legend" aria-label="Colours">
        <li v-for="item in legend" :style="{'--c': item.colour}"><i></i>{{ item.name }}</li>
      </ul>
      <div class="details" aria-live="polite">
        <p v-if="!node" class="soft">Choose a node to see what is on it.</p>
        <template v-else>
          <div class="titled"><h2>{{ node.name }} <span class="soft">{{ node.state }} {{ node.gpu_type }}</span></h2>
            <button v-if="operator && node.state !== 'down'" type="button" @click="$emit('drain', [node.name, node.state])">{{
              node.state === "draining" ? "Undrain" : "Drain …" }}</button></div>
          <p v-if="node.cpus_held !== null">{{ Math.round(node.cpus_held * 100) }} % of the cores held</p>
          <ul>
            <li v-for="(device, k) in node.devices" :key="k">GPU {{ k }}:
              <template v-if="device[0] === 0">free</template>
              <template v-else>{{ Math.round(device[0] * 100) }} %
                <span v-for="job in named(device[1])"> · <a v-if="job" :href="link(job)">{{ job.id }}</a>
                  <span v-else>a job of somebody else</span>
                  <template v-if="job"> ({{ job.owner }})</template></span></template></li>
          </ul>
          <p v-if="!node.devices.length && node.jobs.length">Jobs:
            <span v-for="job in named(node.jobs)"><a v-if="job" :href="link(job)">{{ job.id }}</a> </span></p>
        </template>
      </div>
    </div>`,
  props: { data: String, operator: Boolean },
  emits: ["drain"],
  data() {
    return { text: "", by: "owner", chosen: null, node: null, shown: [], count: 0, legend: [] };
  },
  created() {
    /* Not reactive: what is drawn from these is drawn by hand. */
    this.take(JSON.parse(this.data));
  },
  mounted() {
    this.draw();
  },
  watch: {
    text() {
      this.draw();
    },
    by() {
      this.known = new Map();
      this.draw();
    },
  },
  methods: {
    take(data) {
      this.jobs = byNumber(data.jobs);
      this.nodes = data.nodes;
      this.count = data.nodes.length;
      this.known = new Map();
    },
    patch(come, gone, nodes) {
      for (const number of gone) delete this.jobs[number];
      Object.assign(this.jobs, byNumber(come));
      this.learn();
      for (const [place, node] of Object.entries(nodes)) {
        this.nodes[place] = node;
        const box = document.getElementById(`node-${place}`);
        if (box) box.outerHTML = this.box(Number(place));
      }
      this.look();
    },
    replace(data) {
      this.chosen = null;
      this.take(data);
      this.draw();
    },
    learn() {
      /* A name keeps its colour; at first the most frequent names have the first ones. */
      const counts = new Map();
      for (const job of Object.values(this.jobs)) counts.set(job[this.by], (counts.get(job[this.by]) || 0) + 1);
      const fresh = [...counts.keys()].filter((name) => !this.known.has(name));
      fresh.sort((a, b) => counts.get(b) - counts.get(a) || (a < b ? -1 : 1));
      for (const name of fresh) this.known.set(name, COLOURS[Math.min(this.known.size, COLOURS.length - 1)]);
      const own = [...this.known].slice(0, COLOURS.length - 1).filter(([name]) => counts.has(name));
      this.legend = own.map(([name, colour]) => ({ name, colour }));
      if (this.known.size >= COLOURS.length) this.legend.push({ name: "others", colour: COLOURS[COLOURS.length - 1] });
      this.legend.push({ name: "free", colour: "var(--free)" });
      if (this.nodes.some((node) => node.jobs.includes(-1)))
        this.legend.push({ name: "jobs you may not see", colour: "var(--hidden)" });
    },
    draw() {
      this.learn();
      this.shown = this.fitting();
      this.$refs.grid.innerHTML = this.shown.map((place) => this.box(place)).join("");
      this.look();
    },
    fitting() {
      const words = this.text.trim().toLowerCase();
      const all = this.nodes.map((_, place) => place);
      if (!words) return all;
      const jobs = new Set(Object.values(this.jobs)
        .filter((job) => `${job.id} ${job.owner} ${job.queue}`.toLowerCase().includes(words))
        .map((job) => job.number));
      return all.filter((place) => {
        const node = this.nodes[place];
        return `${node.name} ${node.state} ${node.gpu_type}`.toLowerCase().includes(words) ||
          node.jobs.some((number) => jobs.has(number));
      });
    },
    box(place) {
      const { name, state, devices, cpus_held } = this.nodes[place];
      const held = devices.reduce((sum, device) => sum + device[0], 0);
      const what = devices.length ? `${+held.toFixed(2)} of ${devices.length} GPUs held` :
        cpus_held === null ? "" : `${Math.round(cpus_held * 100)} % of the cores held`;
      const label = `${name}${state === "up" ? "" : `, ${state}`}, ${what}`;
      const cpus = cpus_held === null ? "" : `<div class="cpus" style="--held:${Math.round(cpus_held * 100)}%"></div>`;
      const active = place === this.chosen;
      return `<div class="node ${escaped(state)}${active ? " active" : ""}" role="option" id="node-${place}"` +
        ` title="${escaped(name)}" aria-selected="${active}" aria-label="${escaped(label)}"><span class="name">${escaped(name)}</span>` +
        `${this.cells(devices)}${cpus}</div>`;
    },
    cells(devices) {
      /* One background a device: an element for each would be eight times as many. */
      const count = devices.length;
      if (!count) return "";
      const paint = devices.map(([held, jobs]) => {
        if (held === 0) return "linear-gradient(var(--free),var(--free))";
        const colour = jobs[0] in this.jobs ? this.known.get(this.jobs[jobs[0]][this.by]) : "var(--hidden)";
        const share = Math.round(held * 100);
        return `linear-gradient(to top,${colour} ${share}%,var(--free) ${share}%)`;
      });
      const place = devices.map((_, k) => (count > 1 ? `${(100 * k) / (count - 1)}% 0` : "0 0"));
      return `<div class="cells" style="background-image:${paint.join()};background-position:${place.join()};` +
        `background-size:calc(${100 / count}% - 2px) 100%"></div>`;
    },
    named(numbers) {
      return numbers.map((number) => this.jobs[number]);
    },
    link(job) {
      return `/ui/jobs/${encodeURIComponent(job.id)}`;
    },
    look() {
      this.node = this.chosen === null ? null : { ...this.nodes[this.chosen] };
    },
    choose(place) {
      for (const box of this.$refs.grid.querySelectorAll(".active")) {
        box.classList.remove("active");
        box.setAttribute("aria-selected", "false");
      }
      this.chosen = place;
      const box = document.getElementById(`node-${place}`);
      box.classList.add("active");
      box.setAttribute("aria-selected", "true");
      box.scrollIntoView({ block: "nearest" });
      this.look();
    },
    click(event) {
      const box = event.target.closest(".node");
      if (box) this.choose(Number(box.id.slice(5)));
    },
    key(event) {
      const boxes = this.$refs.grid.children;
      if (!boxes.length) return;
      let columns = [...boxes].findIndex((box) => box.offsetTop !== boxes[0].offsetTop);
      if (columns < 1) columns = boxes.length;
      const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns,
        Home: -boxes.length, End: boxes.length };
      const step = steps[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const now = this.shown.indexOf(this.chosen);
      this.choose(this.shown[now < 0 ? 0 : Math.max(0, Math.min(boxes.length - 1, now + step))]);
    },
  },
};
