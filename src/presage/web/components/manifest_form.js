/* A manifest that is typed, pasted or read from a file. */
export default {
  template: `
    <form @submit.prevent="$emit('manifest', text)">
      <label class="field">Manifest (YAML or JSON)
        <textarea v-model="text" spellcheck="false" name="manifest" maxlength="1000000"
                  aria-describedby="manifest-help"></textarea></label>
      <p id="manifest-help" class="soft">Only name and command are needed. A job that needs files of
        yours is submitted with <code>presage submit</code>, which sends the folder too.</p>
      <div class="row-of-buttons">
        <button class="primary" type="submit" :disabled="busy">Submit the job</button>
        <label class="field">or fill in from a file
          <input type="file" accept=".yaml,.yml,.json,text/*" @change="read"></label>
      </div>
    </form>`,
  props: { initial: String, busy: Boolean },
  data() {
    return { text: this.initial || "" };
  },
  methods: {
    async read(event) {
      const file = event.target.files[0];
      if (file && file.size <= 1000000) this.text = await file.text();
    },
  },
};
