import { describe, expect, it, test } from 'vitest';

import { StreamText, Tail } from '../../src/replay/text';

/** What somebody sees who is told only what is another. */
class Screen {
  text = '';
  written = 0;

  show(stream: StreamText, most = Infinity): void {
    const { keep, text } = stream.take(most);
    this.text = this.text.slice(0, keep) + text;
    this.written += text.length;
  }
}

test.each([
  [['one\n', 'two\n'], 'one\ntwo\n'],
  [['10%\r', '20%\r', '30%'], '30%'],
  [['long line\rab'], 'abng line'],
  [['abc\b\bX'], 'aX'],
  [['a\n\bb'], 'a\nb'],
  [['dos\r\n', 'line\r\n'], 'dos\nline\n'],
  [['ab\r', 'c\nd'], 'cb\nd'],
  [['ab\r\ncd\rX\n'], 'ab\nXd\n'],
  [['ab', '\r', '', 'xyz'], 'xyz']
])('%j is seen as %j', (parts, seen) => {
  const whole = new StreamText('stdout');
  parts.forEach(part => whole.write(part));
  expect(whole.text).toBe(seen);

  const stepwise = new StreamText('stdout');
  const screen = new Screen();
  for (const part of parts) {
    stepwise.write(part);
    screen.show(stepwise, 2); // in small bites too
    while (stepwise.dirty) {
      screen.show(stepwise, 2);
    }
  }
  expect(screen.text).toBe(seen);
});

it('writes what was added, not all of it again', () => {
  const stream = new StreamText('stdout');
  const screen = new Screen();
  for (let line = 0; line < 1000; line++) {
    stream.write(`line ${line}\n`);
    screen.show(stream);
  }
  expect(screen.text).toBe(stream.text);
  expect(screen.written).toBe(stream.text.length);
});

it('writes a progress bar again from its own line on', () => {
  const stream = new StreamText('stderr');
  const screen = new Screen();
  stream.write('x'.repeat(10_000) + '\n');
  screen.show(stream);
  stream.write('10%');
  screen.show(stream);
  stream.write('\r20%');
  expect(stream.take(100)).toEqual({ keep: 10_001, text: '20%' });
});

describe('the tail of what is too much', () => {
  it('keeps the last characters and counts the others', () => {
    const tail = new Tail(10);
    tail.add('stdout', 'abcdef');
    tail.add('stderr', 'ghijkl');
    tail.add('stdout', 'mn');
    expect(tail.pieces()).toEqual([
      { name: 'stdout', text: 'ef' },
      { name: 'stderr', text: 'ghijkl' },
      { name: 'stdout', text: 'mn' }
    ]);
    expect(tail.leftOut).toBe(4);
    expect(tail.end(4)).toEqual({ name: 'stdout', text: 'klmn' });
  });

  it('takes a text that is longer than itself', () => {
    const tail = new Tail(3);
    tail.add('stdout', 'abcdefgh');
    expect(tail.pieces()).toEqual([{ name: 'stdout', text: 'fgh' }]);
    expect(tail.leftOut).toBe(5);
  });
});
