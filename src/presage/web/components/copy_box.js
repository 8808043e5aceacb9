/* A text to copy. */
export default {
  template: `
    <div class="copy-box"><button type="button" @click="copy">{{ copied ? "Copied" : label }}</button>
      <pre ref="text" tabindex="0">{{ text }}</pre></div>`,
  props: { text: String, label: String },
  data() { return { copied: false }; },
  methods: {
    async copy() {
      try {
        await navigator.clipboard.writeText(this.text);
        this.copied = true;
        setTimeout(() => { this.copied = false; }, 2000);
      } catch { getSelection().selectAllChildren(this.$refs.text); }
    },
  },
};
