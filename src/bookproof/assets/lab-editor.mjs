// The labs' editor: CodeMirror with what a few lines of Python need, in the colours of the theme.
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import {
  bracketMatching,
  defaultHighlightStyle,
  HighlightStyle,
  indentOnInput,
  indentUnit,
  syntaxHighlighting,
} from "@codemirror/language";
import { EditorState, StateEffect, StateField } from "@codemirror/state";
import { Decoration, drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const colour = (name) => ({ color: `var(--md-code-hl-${name}-color)` });
const style = HighlightStyle.define([
  { tag: tags.keyword, ...colour("keyword") },
  { tag: [tags.string, tags.special(tags.string)], ...colour("string") },
  { tag: [tags.number, tags.bool, tags.null], ...colour("number") },
  { tag: tags.comment, ...colour("comment") },
  { tag: tags.function(tags.definition(tags.variableName)), ...colour("function") },
  { tag: tags.className, ...colour("function") },
  { tag: tags.operator, ...colour("operator") },
  { tag: tags.punctuation, ...colour("punctuation") },
]);

const mark = StateEffect.define();
const marked = StateField.define({
  create: () => Decoration.none,
  update(value, transaction) {
    value = transaction.docChanged ? Decoration.none : value;
    for (const effect of transaction.effects) {
      if (!effect.is(mark)) continue;
      const { line } = effect.value;
      const known = line >= 1 && line <= transaction.state.doc.lines;
      value = known
        ? Decoration.set([Decoration.line({ class: "bookproof-lab-line" }).range(transaction.state.doc.line(line).from)])
        : Decoration.none;
    }
    return value;
  },
  provide: (field) => EditorView.decorations.from(field),
});

// Put an editor into an element. `run` is called for Ctrl-Enter and Cmd-Enter, `change` with every new text.
export function createEditor({ parent, text, label, describedBy, run, change }) {
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        keymap.of([{ key: "Mod-Enter", run: () => (run(), true) }, indentWithTab, ...historyKeymap, ...defaultKeymap]),
        lineNumbers(),
        history(),
        drawSelection(),
        highlightActiveLine(),
        indentOnInput(),
        indentUnit.of("    "),
        bracketMatching(),
        python(),
        syntaxHighlighting(style),
        syntaxHighlighting(defaultHighlightStyle, { fallback: true }),
        marked,
        EditorView.contentAttributes.of({ "aria-label": label, "aria-describedby": describedBy, spellcheck: "false" }),
        EditorView.updateListener.of((update) => update.docChanged && change(update.state.doc.toString())),
      ],
    }),
  });
  return {
    get text() {
      return view.state.doc.toString();
    },
    set text(next) {
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next } });
    },
    mark(line, { scroll = false } = {}) {
      const effects = [mark.of({ line })];
      if (scroll && line >= 1 && line <= view.state.doc.lines) {
        effects.push(EditorView.scrollIntoView(view.state.doc.line(line).from, { y: "center" }));
      }
      view.dispatch({ effects });
    },
    focus: () => view.focus(),
    destroy: () => view.destroy(),
  };
}
