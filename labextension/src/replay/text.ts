/**
 * The text of one stream as a terminal would show it: `\r` goes back to the start of its line, a backspace takes one
 * character, what follows overwrites. It knows from where on its text is another since it was last shown, so that a
 * long output grows without being written again.
 */
export class StreamText {
  private _done = ''; // whole lines
  private _line = ''; // the last one
  private _column = 0;
  private _shown = 0; // how many characters were shown
  private _same = 0; // how many of its first characters are as they were shown

  /** @param name - stdout or stderr. */
  constructor(readonly name: 'stdout' | 'stderr') {}

  /** How many characters there are. */
  get length(): number {
    return this._done.length + this._line.length;
  }

  /** Whether what comes next begins a line. */
  get atLineStart(): boolean {
    return this._line === '';
  }

  /** All of it. */
  get text(): string {
    return this._done + this._line;
  }

  /** Whether it is another than what was shown. */
  get dirty(): boolean {
    return this._same < this._shown || this.length > this._shown;
  }

  /** Write to it. */
  write(text: string): void {
    if (this._column === this._line.length && !/[\r\b]/.test(text)) {
      this._append(text);
      return;
    }
    const parts = text.split(/([\n\r\b])/);
    for (const part of parts) {
      if (part === '\n') {
        this._done += this._line + '\n';
        this._line = '';
        this._column = 0;
      } else if (part === '\r') {
        this._column = 0;
      } else if (part === '\b') {
        this._backspace();
      } else if (part) {
        this._put(part);
      }
    }
  }

  /** Have it be this instead. */
  replace(text: string): void {
    this._done = this._line = '';
    this._column = this._same = 0;
    this.write(text);
  }

  /** Nothing of it is shown any more. */
  forget(): void {
    this._shown = this._same = 0;
  }

  /**
   * What to do to the text that was shown: cut it to `keep` characters, then append `text`.
   *
   * @param most - of more characters than these the rest comes with the next call.
   */
  take(most: number): { keep: number; text: string } {
    const keep = Math.min(this._same, this._shown);
    const text = this.text.slice(keep, keep + most);
    this._shown = this._same = keep + text.length;
    return { keep, text };
  }

  private _append(text: string): void {
    const end = text.lastIndexOf('\n') + 1;
    if (end > 0) {
      this._done += this._line + text.slice(0, end);
      this._line = '';
    }
    this._line += text.slice(end);
    this._column = this._line.length;
  }

  private _put(part: string): void {
    const line = this._line;
    if (this._column < line.length) {
      this._touch(this._column);
      this._line = line.slice(0, this._column) + part + line.slice(this._column + part.length);
    } else {
      this._line += part;
    }
    this._column += part.length;
  }

  private _backspace(): void {
    if (this._column > 0) {
      this._column -= 1;
      this._touch(this._column);
      this._line = this._line.slice(0, this._column) + this._line.slice(this._column + 1);
    }
  }

  private _touch(column: number): void {
    this._same = Math.min(this._same, this._done.length + column);
  }
}

/** A piece of text and the stream that it belongs to. */
export interface IPiece {
  name: 'stdout' | 'stderr';
  text: string;
}

/** Pieces up to this length grow, so that a program that prints single characters makes no long list. */
const SMALL = 4096;

/** The last characters of what is too much to show. */
export class Tail {
  private _pieces: IPiece[] = [];
  private _held = 0;

  /** How many characters were let go. */
  leftOut = 0;

  /** @param limit - in characters. */
  constructor(private readonly limit: number) {}

  /** Whether there is anything in it. */
  get empty(): boolean {
    return this._pieces.length === 0;
  }

  /** Keep this; let the oldest go. */
  add(name: IPiece['name'], text: string): void {
    if (text.length > this.limit) {
      this.leftOut += text.length - this.limit;
      text = text.slice(-this.limit);
    }
    const last = this._pieces[this._pieces.length - 1];
    if (last && last.name === name && last.text.length < SMALL) {
      last.text += text;
    } else {
      this._pieces.push({ name, text });
    }
    this._held += text.length;
    let first = this._pieces[0];
    while (first && this._held > this.limit) {
      const gone = Math.min(this._held - this.limit, first.text.length);
      this.leftOut += gone;
      this._held -= gone;
      if (gone === first.text.length) {
        this._pieces.shift();
      } else {
        first.text = first.text.slice(gone);
      }
      first = this._pieces[0];
    }
  }

  /** What is kept, neighbours of one stream as one. */
  pieces(): IPiece[] {
    const result: IPiece[] = [];
    for (const piece of this._pieces) {
      const last = result[result.length - 1];
      if (last && last.name === piece.name) {
        last.text += piece.text;
      } else {
        result.push({ ...piece });
      }
    }
    return result;
  }

  /** The last `count` characters, and the stream of the very last. */
  end(count: number): IPiece {
    let text = '';
    for (let at = this._pieces.length - 1; at >= 0 && text.length < count; at--) {
      text = (this._pieces[at]?.text ?? '') + text;
    }
    return {
      name: this._pieces[this._pieces.length - 1]?.name ?? 'stdout',
      text: text.slice(-count)
    };
  }
}
