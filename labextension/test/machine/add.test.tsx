// @vitest-environment jsdom
import { Signal } from '@lumino/signaling';
import React, { act } from 'react';
import { createRoot, type Root } from 'react-dom/client';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';

import { type IToken, type IWorker, toWorker } from '../../src/api/types';
import { AddMachine, type JoinClient } from '../../src/machine/add';
import { trans } from '../fake';

(globalThis as { IS_REACT_ACT_ENVIRONMENT?: boolean }).IS_REACT_ACT_ENVIRONMENT = true;

class Plane {
  workers: IWorker[] = [toWorker({ id: 'w1', name: 'laptop', connected: true })];
  usedBy: string | null = null;
  refuses = false;
  made = 0;
  lookers = 0;
  time = 1000;
  readonly changed = new Signal<this, void>(this);

  get client(): JoinClient {
    const token: IToken = { id: 't', name: '', role: 'join', expires_at: 1600, single_use: true };
    return {
      makeToken: () => {
        this.made += 1;
        return this.refuses
          ? Promise.reject(new Error('not yours to make'))
          : Promise.resolve({ ...token, id: `t${this.made}`, token: 'gl-join-abc' });
      },
      tokens: () => Promise.resolve([{ ...token, id: `t${this.made}`, used_by: this.usedBy }]),
      joinUrl: () => 'http://host:8888/user/x/gpulayer',
      watch: this.watch as JoinClient['watch']
    };
  }

  private readonly watch = this.makeWatch();

  private makeWatch(): unknown {
    const workers = () => this.workers;
    return {
      changed: this.changed,
      now: () => this.time,
      look: () => {
        this.lookers += 1;
        return { dispose: () => (this.lookers -= 1) };
      },
      get fleet() {
        return { workers: workers() };
      }
    };
  }

  async arrive(name: string, connected: boolean): Promise<void> {
    this.usedBy = name;
    this.workers = [...this.workers, toWorker({ id: 'w2', name, connected })];
    await act(async () => {
      this.changed.emit();
      await Promise.resolve();
    });
  }
}

let plane: Plane;
let node: HTMLElement;
let root: Root;
const copied: string[] = [];

beforeEach(async () => {
  vi.useFakeTimers();
  plane = new Plane();
  node = document.createElement('div');
  root = createRoot(node);
  await draw();
});

afterEach(() => {
  act(() => root.unmount());
  vi.useRealTimers();
});

async function draw(): Promise<void> {
  const copy = (text: string) => Promise.resolve(void copied.push(text));
  const client = plane.client;
  await act(async () => {
    root.render(<AddMachine client={client} trans={trans} copy={copy} />);
    await Promise.resolve();
  });
}

const state = () => node.querySelector<HTMLElement>('.gpulayer-AddMachine')?.dataset['state'];
const click = (name: string) =>
  act(async () => {
    node.querySelector<HTMLElement>(`[data-action="${name}"]`)?.click();
    await Promise.resolve();
  });

it('shows the line, and copies it', async () => {
  const line = 'gpulayer-worker join http://host:8888/user/x/gpulayer --token gl-join-abc';
  expect(state()).toBe('waiting');
  expect(node.querySelector('textarea')?.value).toBe(line);
  await click('copy');
  expect(copied.pop()).toBe(line);
  expect(node.textContent).toContain('copied');
});

it('counts the time down, and makes another when it is over', async () => {
  expect(node.textContent).toContain('10:00 min');
  plane.time = 1535;
  act(() => void vi.advanceTimersByTime(1000));
  expect(node.textContent).toContain('1:05 min');
  plane.time = 1601;
  act(() => void vi.advanceTimersByTime(1000));
  expect(state()).toBe('over');
  plane.time = 1000;
  await click('make-token');
  expect(plane.made).toBe(2);
});

it('says when the machine is here, and not before', async () => {
  await plane.arrive('box', false);
  expect(state()).toBe('waiting');
  await plane.arrive('box', true);
  expect(state()).toBe('arrived');
  expect(node.textContent).toContain('box is here.');
});

it('looks only while it is open', () => {
  expect(plane.lookers).toBe(1);
  act(() => root.render(null));
  expect(plane.lookers).toBe(0);
});

it('says why no token could be made', async () => {
  plane.refuses = true;
  act(() => root.render(null));
  await draw();
  expect(state()).toBe('error');
  expect(node.textContent).toContain('not yours to make');
});
