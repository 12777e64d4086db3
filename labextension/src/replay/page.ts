import type { IOutput } from '@jupyterlab/nbformat';

import type { IOutputs } from './outputs';
import { stream } from './outputs';
import type { IPiece } from './text';
import { StreamText } from './text';

/** As many characters of text as one flush writes: a page stays quick under a flood. */
const FLUSH_CHARS = 32 * 1024;

/** What placing an output costs, in the same coin. */
const OUTPUT_COST = 1024;

/** One output: what is to stand there. Only its page changes it. */
export interface IEntry {
  output: IOutput;
  /** Of a stream: its text. */
  text: StreamText | null;
  /** It stands there, maybe an older self of it. */
  placed: boolean;
  /** Its output is another than the one that stands there. */
  dirty: boolean;
}

/** The outputs as they are to be; `flush` makes them so, a bounded part at a time. */
export class Page {
  private _entries: IEntry[] = [];
  private _cleared = true; // what stands there goes first

  /**
   * @param outputs - where they are written.
   * @param chunkChars - a stream goes on in another output at a line's end after so many characters.
   */
  constructor(
    private readonly outputs: IOutputs,
    private readonly chunkChars = Infinity
  ) {}

  /** Nothing is to stand there. */
  clear(): void {
    this._entries = [];
    this._cleared = true;
  }

  /** Append an output. */
  add(output: IOutput, text: StreamText | null = null): IEntry {
    const entry: IEntry = { output, text, placed: false, dirty: true };
    this._entries.push(entry);
    return entry;
  }

  /** Another output in its place; it is no growing stream any more. */
  set(entry: IEntry, output: IOutput): void {
    entry.output = output;
    entry.text = null;
    entry.dirty = true;
  }

  /** Take one out: all that stands there is written anew. */
  remove(gone: readonly IEntry[]): void {
    this._entries = this._entries.filter(entry => !gone.includes(entry));
    this._cleared = true;
    for (const entry of this._entries) {
      entry.placed = false;
      entry.dirty = true;
      entry.text?.forget();
    }
  }

  /** Append text to the last output, if that is this stream and not `closed`. Returns by how much it grew. */
  write(piece: IPiece, closed?: IEntry): number {
    let grown = 0;
    let text = piece.text;
    while (text) {
      const open = this._open(piece.name, closed);
      const before = open.length;
      const cut = text.indexOf('\n', Math.max(0, this.chunkChars - before)) + 1 || text.length;
      open.write(text.slice(0, cut));
      grown += open.length - before;
      text = text.slice(cut);
    }
    return grown;
  }

  /** Write what is another. True: some is left for the next time. */
  flush(): boolean {
    if (this._cleared) {
      this.outputs.clear();
      this._cleared = false;
    }
    let budget = FLUSH_CHARS;
    for (let index = 0; index < this._entries.length && budget > 0; index++) {
      const entry = this._entries[index] as IEntry;
      budget -= this._place(index, entry);
      if (entry.text?.dirty) {
        const { keep, text } = entry.text.take(FLUSH_CHARS);
        this.outputs.edit(index, keep, text);
        budget -= text.length;
      }
    }
    return this._entries.some(entry => entry.dirty || entry.text?.dirty);
  }

  private _open(name: IPiece['name'], closed?: IEntry): StreamText {
    const last = this._entries[this._entries.length - 1];
    const open = last === closed ? null : last?.text;
    if (open?.name === name && !(open.length >= this.chunkChars && open.atLineStart)) {
      return open;
    }
    const text = new StreamText(name);
    this.add(stream(name), text);
    return text;
  }

  /** Write an entry's output, if need be. Returns what it costs. */
  private _place(index: number, entry: IEntry): number {
    if (!entry.dirty) {
      return 0;
    }
    entry.dirty = false;
    if (entry.placed) {
      this.outputs.set(index, entry.output);
    } else {
      this.outputs.add(entry.output);
      entry.placed = true;
    }
    return OUTPUT_COST;
  }
}
