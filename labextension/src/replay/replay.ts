import type { IOutput } from '@jupyterlab/nbformat';

import type { IEventsTaker } from '../api/events';
import type { IJob, IJobEvent } from '../api/types';
import { isTerminal } from '../api/types';
import { size, statusLine } from '../words';
import type { IOutputs } from './outputs';
import { displayData, executeResult, stream, textDisplay } from './outputs';
import type { IEntry } from './page';
import { Page } from './page';
import { Errors, verdict } from './raised';
import type { IPiece } from './text';
import { StreamText, Tail } from './text';

/** How a replay shows what it replays. */
export interface IReplayOptions {
  /** Of more text the first half and the last half are shown, in characters. */
  maxChars?: number;
  /** A stream's output goes on in another one at the line's end after so many characters; not given: never. */
  chunkChars?: number;
  /** Whether the job's state stands first, as under a cell. */
  statusLine?: boolean;
  /** Unix seconds of the control plane's clock. */
  now: () => number;
  /** The job, as far as it is known before its first word here. */
  job?: IJob | null;
}

/** `MAX_OUTPUT_BYTES` of `gpulayer/notebook/options.py`: what a cell shows of its text. */
const MAX_CHARS = 200_000;

/** While more comes than is shown, the newest text, refreshed. */
const PREVIEW_CHARS = 8 * 1024;

type Content = Record<string, unknown>;

/**
 * A job's events as the outputs of a cell: what `gpulayer/notebook/replay.py` is for a kernel. It only keeps what is
 * to be shown; `flush` writes what is another.
 */
export class Replay implements IEventsTaker {
  private readonly _page: Page;
  private readonly _errors = new Errors(error => this._add(error));
  private readonly _displays = new Map<string, IEntry[]>();
  private readonly _max: number;
  private _clearNext = false;
  private _status: IEntry | null = null;
  private _line = ''; // what the status says
  private _preview: { marker: IEntry; text: IEntry } | null = null;
  private _room = 0; // characters of text that still fit before the tail begins
  private _tail = new Tail(0);
  private _job: IJob | null;
  private _finished = false;

  constructor(
    outputs: IOutputs,
    private readonly options: IReplayOptions
  ) {
    this._max = options.maxChars ?? MAX_CHARS;
    this._page = new Page(outputs, options.chunkChars);
    this._job = options.job ?? null;
    this._reset();
  }

  /** The job as last heard. */
  get job(): IJob | null {
    return this._job;
  }

  /** Whether the job ended and all of it is here; `flush` may still have some to write. */
  get finished(): boolean {
    return this._finished;
  }

  onJob(job: IJob): void {
    this._job = job;
    this.tick();
    if (isTerminal(job) && !this._finished) {
      this._finish(job);
    }
  }

  onRestart(): void {
    this._errors.forget();
    this._reset();
  }

  onEvents(events: readonly IJobEvent[]): void {
    for (const event of events) {
      if (event.kind === 'reply') {
        this._onReply(event.content);
      } else if (event.kind === 'mark') {
        const why = typeof event.content['why'] === 'string' ? event.content['why'] : 'unknown';
        this._text('stderr', `\n[output truncated here: ${why}]\n`);
      } else {
        this._onMessage(event.msg_type, event.content);
      }
    }
  }

  /** Time went on: a running job's status says how much. */
  tick(): void {
    if (this._status && this._job) {
      const line = statusLine(this._job, this.options.now());
      if (line !== this._line) {
        this._line = line;
        this._page.set(this._status, textDisplay(line));
      }
    }
  }

  /** While more text came than is shown: have the newest of it seen. */
  preview(): void {
    if (!this._tail.empty && !this._finished) {
      const { marker, text } = this._ensurePreview();
      this._page.set(marker, textDisplay('… more than is shown here; its newest lines, live:'));
      text.text?.replace(this._tail.end(PREVIEW_CHARS).text);
    }
  }

  /** Write what is another. True: some is left for the next time. */
  flush(): boolean {
    return this._page.flush();
  }

  // ------------------------------------------------------------------ messages

  private _onMessage(type: string, content: Content): void {
    switch (type) {
      case 'stream':
        this._errors.pass();
        this._text(content['name'] === 'stderr' ? 'stderr' : 'stdout', content['text'] as string);
        break;
      case 'display_data':
        this._errors.pass();
        this._display(content);
        break;
      case 'update_display_data':
        this._errors.pass();
        this._update(content);
        break;
      case 'execute_result':
        this._errors.pass();
        this._add(executeResult(content));
        break;
      case 'clear_output':
        this._errors.pass();
        this._clear(content['wait'] === true);
        break;
      case 'error':
        this._errors.add(content);
        break;
    }
  }

  private _onReply(reply: Content): void {
    for (const payload of (reply['payload'] as Content[] | undefined) ?? []) {
      if (payload['source'] === 'page') {
        this._add(displayData(payload));
      }
    }
    this._errors.reply(reply);
  }

  private _display(content: Content): void {
    const entry = this._add(displayData(content));
    const id = displayId(content);
    if (id !== null) {
      this._displays.set(id, [...(this._displays.get(id) ?? []), entry]);
    }
  }

  private _update(content: Content): void {
    for (const entry of this._displays.get(displayId(content) ?? '') ?? []) {
      this._page.set(entry, displayData(content));
    }
  }

  private _clear(wait: boolean): void {
    this._clearNext = wait;
    if (!wait) {
      this._reset();
    }
  }

  // ------------------------------------------------------------------ the end

  private _finish(job: IJob): void {
    this._finished = true;
    this._clearNext = false;
    this._showTail();
    const last = verdict(job, this._errors.ended);
    if (last) {
      this._add(last);
    }
  }

  private _showTail(): void {
    const pieces = this._tail.pieces();
    if (this._tail.leftOut > 0) {
      const { marker, text } = this._ensurePreview();
      this._page.set(marker, textDisplay(this._note()));
      this._beginTail(text, pieces);
    } else if (this._preview) {
      this._page.remove([this._preview.marker, this._preview.text]);
      this._preview = null;
    }
    for (const piece of pieces) {
      this._page.write(piece, this._preview?.text);
    }
  }

  /** The tail's first piece comes where the newest text was. */
  private _beginTail(entry: IEntry, pieces: IPiece[]): void {
    const first = pieces.shift() ?? { name: 'stdout', text: '' };
    const cut = first.text.indexOf('\n', this.options.chunkChars ?? Infinity) + 1 || Infinity;
    if (first.name === entry.text?.name) {
      entry.text.replace(first.text.slice(0, cut));
    } else {
      this._page.set(entry, { ...stream(first.name), text: first.text.slice(0, cut) });
    }
    pieces.unshift({ ...first, text: first.text.slice(cut) });
  }

  private _note(): string {
    const job = this._job?.id ?? '';
    const left = size(this._tail.leftOut);
    return `… ${left} left out here: the whole is in job ${job} (%gpulayer attach ${job} --max-output 1GB) …`;
  }

  // ------------------------------------------------------------------ entries

  /** Nothing but the job's state. */
  private _reset(): void {
    this._page.clear();
    this._clearNext = false;
    this._displays.clear();
    this._preview = null;
    this._room = Math.floor(this._max / 2);
    this._tail = new Tail(this._max - this._room);
    if (this.options.statusLine) {
      this._line = '…';
      this._status = this._page.add(textDisplay(this._line));
      this.tick();
    }
  }

  private _add(output: IOutput): IEntry {
    this._beforeNew();
    return this._page.add(output);
  }

  private _text(name: IPiece['name'], text: string): void {
    this._beforeNew();
    while (text && this._room > 0) {
      const part = text.slice(0, this._room);
      this._room -= this._page.write({ name, text: part }, this._preview?.text);
      text = text.slice(part.length);
    }
    if (text) {
      this._tail.add(name, text);
    }
  }

  /** `clear_output(wait=True)` clears when something new comes. */
  private _beforeNew(): void {
    if (this._clearNext) {
      this._reset();
    }
  }

  private _ensurePreview(): { marker: IEntry; text: IEntry } {
    this._preview ??= {
      marker: this._page.add(textDisplay('…')),
      text: this._page.add(stream('stdout'), new StreamText('stdout'))
    };
    return this._preview;
  }
}

function displayId(content: Content): string | null {
  const transient = content['transient'] as { display_id?: string } | undefined;
  return transient?.display_id ?? null;
}
