/* The output of a worker: it follows the end until somebody scrolls up. */
const MOST = 400000;

export default {
  template: `<pre class="log" role="log" tabindex="0" aria-label="Output of the worker" ref="box"
    @scroll="scrolled">{{ shown || "Nothing was written yet." }}</pre>`,
  props: { text: String },
  data() {
    return { shown: this.text || "", follow: true };
  },
  mounted() {
    this.down();
  },
  methods: {
    append(text) {
      const all = this.shown + text;
      this.shown = all.length > MOST ? all.slice(all.indexOf("\n", all.length - MOST) + 1) : all;
      this.down();
    },
    replace(text) {
      this.shown = text;
      this.follow = true;
      this.down();
    },
    scrolled() {
      const box = this.$refs.box;
      this.follow = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
    },
    down() {
      this.$nextTick(() => {
        if (this.follow && this.$refs.box) this.$refs.box.scrollTop = this.$refs.box.scrollHeight;
      });
    },
  },
};
