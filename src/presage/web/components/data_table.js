/* A table of figures. A cell is a text, or {text, href, kind, sort}; a column sorts by a click on its name.
   Rows keep their place in the document, so that the focus stays where it is. */
const plain = (cell) => (cell !== null && typeof cell === "object" ? cell : { text: cell });

export default {
  template: `
    <div class="scroll">
      <table class="list cards" :class="{ tight }">
        <caption class="unseen">{{ caption }}</caption>
        <thead><tr>
          <th v-for="column in columns" scope="col" :class="column.kind" :aria-sort="order(column)">
            <button v-if="sortable && column.name" type="button" class="sort" @click="by(column)">{{ column.name
              }}<span aria-hidden="true">{{ mark(column) }}</span></button>
            <template v-else>{{ column.name }}</template></th>
        </tr></thead>
        <tbody>
          <tr v-for="row in sorted" :key="row.id">
            <td v-for="column in columns" :data-label="column.name" :class="[column.kind, cell(row, column).kind]"
                :title="cell(row, column).title">
              <a v-if="cell(row, column).href" :href="cell(row, column).href">{{ cell(row, column).text }}</a>
              <template v-else-if="column.kind === 'actions'">
                <button v-for="name in row[column.key]" type="button" :aria-label="name + ' ' + row.id"
                  @click="$emit('act', [name, row.id])">{{ name }}</button></template>
              <span v-else-if="column.kind === 'state'" class="status" :class="cell(row, column).text">{{
                cell(row, column).text }}</span>
              <span v-else-if="column.kind === 'bar' && cell(row, column).share !== undefined" class="meter-cell">
                <i :style="{ width: Math.round(100 * cell(row, column).share) + '%' }"></i><b>{{
                cell(row, column).text }}</b></span>
              <span v-else-if="column.kind === 'why'" class="clamp">{{ cell(row, column).text }}</span>
              <template v-else>{{ cell(row, column).text }}</template></td>
          </tr>
        </tbody>
      </table>
      <p v-if="!rows.length" class="soft empty">{{ empty }}</p>
    </div>`,
  props: { columns: Array, rows: Array, caption: String, empty: String, sortable: Boolean, tight: Boolean },
  emits: ["act"],
  data() {
    return { key: null, down: true };
  },
  computed: {
    sorted() {
      if (this.key === null) return this.rows;
      const value = (row) => { const cell = plain(row[this.key]); return cell.sort ?? cell.text; };
      const less = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b :
        String(a ?? "").localeCompare(String(b ?? ""), undefined, { numeric: true }));
      return [...this.rows].sort((a, b) => (this.down ? -1 : 1) * less(value(a), value(b)));
    },
  },
  methods: {
    cell(row, column) {
      return plain(row[column.key]);
    },
    by(column) {
      this.down = this.key === column.key ? !this.down : column.kind === "number" || column.kind === "bar";
      this.key = column.key;
    },
    order(column) {
      return this.key === column.key ? (this.down ? "descending" : "ascending") : null;
    },
    mark(column) {
      return this.key === column.key ? (this.down ? " ▾" : " ▴") : "";
    },
  },
};
