import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import type { IDevice, IDeviceSample, IJob, IWorker } from '../api/types';
import { deviceName, part, percent, size, wholeSize } from '../words';
import { Name } from './common';

/** Of so many samples the course of a device's use is shown. */
const COURSE = 8;
const STEPS = '▁▂▃▄▅▆▇█';

/** An accelerator of a machine: what it does now, and for whom. */
export function Device(props: {
  device: IDevice;
  worker: IWorker;
  jobs: readonly IJob[];
  trans: TranslationBundle;
}): JSX.Element {
  const { device, worker, trans } = props;
  const sample = worker.connected
    ? worker.sample?.devices.find(each => each.uuid === device.uuid)
    : undefined;
  return (
    <div
      className="gpulayer-Device"
      data-device={device.uuid}
      data-free={worker.devices_free.includes(device.uuid)}
      data-sick={device.sick !== ''}
    >
      <Name text={deviceName(device)} title={`${device.name}, ${device.uuid}`} />
      <Figures {...props} sample={sample} />
      {device.sick && <p className="gpulayer-Note gpulayer-Device-note">{device.sick}</p>}
      {sample && sample.foreign.length > 0 && (
        <p className="gpulayer-Note gpulayer-Device-note">{strangers(sample, trans)}</p>
      )}
    </div>
  );
}

function Figures(props: {
  device: IDevice;
  worker: IWorker;
  jobs: readonly IJob[];
  sample: IDeviceSample | undefined;
  trans: TranslationBundle;
}): JSX.Element {
  const { device, worker, sample, trans } = props;
  const share = sample?.utilisation ?? null;
  const celsius = sample?.temperature_c ?? null;
  const said = [
    memory(device, sample),
    celsius === null ? '' : `${Math.round(celsius)}°C`,
    worker.connected ? whose(device, worker, props.jobs, trans) : ''
  ];
  return (
    <>
      {share !== null && <Use share={share} at={worker.sampled_at ?? 0} trans={trans} />}
      <span className="gpulayer-Device-said">{said.filter(Boolean).join(' · ')}</span>
    </>
  );
}

/** How busy a device is, and was: a course of steps, and the share of the last second. */
function Use(props: { share: number; at: number; trans: TranslationBundle }): JSX.Element {
  const { share, at } = props;
  const [course, setCourse] = React.useState<readonly number[]>([share]);
  React.useEffect(() => {
    setCourse(old => [...old, share].slice(-COURSE));
  }, [at]); // each sample is a step, also of a device that stays as busy as it was
  const label = props.trans.__('%1 busy', percent(share));
  return (
    <span className="gpulayer-Use" role="img" aria-label={label} title={label}>
      <span className="gpulayer-Use-course" aria-hidden="true">
        {steps(course)}
      </span>
      <span aria-hidden="true">{percent(share).padStart(4, '\u2007')}</span>{' '}
    </span>
  );
}

/** Shares from 0 to 1 as bars of text; as many as are shown, the oldest left out or low. */
export function steps(course: readonly number[]): string {
  const shown = [...Array<number>(COURSE).fill(0), ...course].slice(-COURSE);
  const last = STEPS.length - 1;
  return shown.map(each => STEPS[Math.round(Math.min(1, Math.max(0, each)) * last)]).join('');
}

function memory(device: IDevice, sample: IDeviceSample | undefined): string {
  if (device.vram_bytes === null) {
    return device.unified ? 'unified' : '';
  }
  const whole = wholeSize(device.vram_bytes);
  if (!sample || sample.used_bytes === null) {
    return whole;
  }
  return part(sample.used_bytes, device.vram_bytes);
}

function whose(
  device: IDevice,
  worker: IWorker,
  jobs: readonly IJob[],
  trans: TranslationBundle
): string {
  if (device.sick) {
    return trans.__('sick');
  }
  const free = worker.devices_free.includes(device.uuid);
  const holders = jobs.filter(job => job.devices.some(held => held.uuid === device.uuid));
  const first = holders[0];
  if (!first) {
    return free ? trans.__('free') : trans.__('in use');
  }
  const more = holders.length > 1 ? ` +${holders.length - 1}` : '';
  return `${first.name || first.id}${more}`;
}

function strangers(sample: IDeviceSample, trans: TranslationBundle): string {
  const held = sample.foreign.map(process => {
    const what = [process.name || trans.__('a process'), `pid ${process.pid}`];
    const by = process.user ? trans.__(' by %1', process.user) : '';
    const much = process.bytes ? `: ${size(process.bytes)}` : '';
    return `${what.join(', ')}${by}${much}`;
  });
  return trans.__('not of GPUlayer: %1', held.join('; '));
}
