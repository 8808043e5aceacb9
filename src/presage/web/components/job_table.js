/* A page of jobs. Rows keep their place in the document, so that the focus stays where it is. */
function ago(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export default {
  template: `
    <div class="scroll">
      <p v-if="ticked.length" class="picked" role="status"><a :href="'/ui/compare?jobs=' + ticked.map(encodeURIComponent).join()"
        >Compare {{ ticked.length }} {{ ticked.length === 1 ? "job" : "jobs" }}</a>
        <button type="button" @click="ticked = []">Clear</button></p>
      <table class="list cards">
        <caption class="unseen">{{ caption }}</caption>
        <thead><tr><th scope="col" class="tick"><span class="unseen">Compare</span></th><th scope="col">Job</th><th scope="col">Status</th><th scope="col">Owner</th>
          <th scope="col">Queue</th><th scope="col">Submitted</th><th scope="col">Workers</th>
          <th v-if="eta" scope="col">Starts in</th><th scope="col">Why, or where</th></tr></thead>
        <tbody>
          <tr v-for="row in rows" :key="row.id">
            <td class="tick"><input type="checkbox" v-model="ticked" :value="row.id" :aria-label="'Compare ' + row.id"
              :disabled="ticked.length >= 12 && !ticked.includes(row.id)"></td>
            <td data-label="Job"><a :href="'/ui/jobs/' + encodeURIComponent(row.id)">{{ row.id }}</a></td>
            <td data-label="Status"><span class="status" :class="row.status">{{ row.status }}</span></td>
            <td data-label="Owner">{{ row.owner }}</td>
            <td data-label="Queue">{{ row.queue }}</td>
            <td data-label="Submitted" :title="new Date(row.submitted_at * 1000).toLocaleString()">{{
              ago(now - row.submitted_at) }} ago</td>
            <td data-label="Workers">{{ row.workers || "" }}</td>
            <td v-if="eta" data-label="Starts in">{{ row.eta }}</td>
            <td data-label="Why" class="why">{{ row.why }}</td>
          </tr>
        </tbody>
      </table>
      <p v-if="!rows.length" class="soft" style="padding:12px">No job fits.</p>
    </div>`,
  props: { rows: Array, eta: Boolean, caption: String },
  data() {
    return { now: Date.now() / 1000, ticked: [] };
  },
  mounted() {
    this.clock = setInterval(() => (this.now = Date.now() / 1000), 5000);
  },
  unmounted() {
    clearInterval(this.clock);
  },
  methods: { ago },
};
