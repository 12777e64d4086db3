import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

import type { IJob, IWorker } from '../api/types';
import { isTerminal } from '../api/types';
import { size } from '../words';
import type { IPartProps } from './common';
import { Action, Name, Section, When } from './common';
import { Device } from './device';
import { Frameworks, Host } from './host';

interface IMachinesProps extends IPartProps {
  workers: readonly IWorker[];
  jobs: readonly IJob[];
  onAdd: () => void;
}

/** The machines: this one first, then those that are connected, by name. */
export function Machines(props: IMachinesProps): JSX.Element {
  const { trans, workers } = props;
  const online = workers.filter(worker => worker.connected).length;
  const sorted = [...workers].sort(
    (a, b) => Number(b.connected) - Number(a.connected) || a.name.localeCompare(b.name)
  );
  return (
    <Section name="machines" title={trans.__('Machines')} aside={trans.__('%1 online', online)}>
      <ul className="gpulayer-List">
        {sorted.map(worker => (
          <Machine key={worker.id} {...props} worker={worker} />
        ))}
      </ul>
      {workers.every(worker => worker.local) && (
        <div className="gpulayer-Empty">
          <p>
            {workers.length > 0
              ? trans.__('Only this machine so far. Add another: paste one line there.')
              : trans.__('No machine yet. Add one: paste one line there.')}
          </p>
          <Action name="add-machine" label={trans.__('Add a machine')} onClick={props.onAdd} />
        </div>
      )}
    </Section>
  );
}

function Machine(props: IMachinesProps & { worker: IWorker }): JSX.Element {
  const { worker, trans, now } = props;
  const [open, setOpen] = React.useState(worker.inventory.devices.length > 0);
  const jobs = props.jobs.filter(job => job.worker === worker.name && !isTerminal(job));
  const id = `gpulayer-machine-${worker.id}`;
  return (
    <li className="gpulayer-Machine" data-worker={worker.name} data-online={worker.connected}>
      <button
        type="button"
        className="gpulayer-Machine-head"
        aria-expanded={open}
        aria-controls={id}
        onClick={() => setOpen(!open)}
      >
        <span className="gpulayer-Caret" aria-hidden="true" />
        <Name text={worker.name} />
        {worker.local && <span className="gpulayer-Muted">{trans.__('(this machine)')}</span>}
        <span className="gpulayer-Figures">
          {worker.connected ? (
            doing(worker, jobs.length, trans)
          ) : (
            <>
              {trans.__('◌ out of reach')} <When at={worker.last_seen_at} now={now} />
            </>
          )}
        </span>
      </button>
      {open && <MachineDetails id={id} worker={worker} jobs={jobs} trans={trans} />}
      {problems(worker).map(note => (
        <p className="gpulayer-Note" key={note}>
          {note}
        </p>
      ))}
    </li>
  );
}

function doing(worker: IWorker, jobs: number, trans: TranslationBundle): string {
  const slots = trans._n(
    '%2 of %1 slot free',
    '%2 of %1 slots free',
    worker.slots,
    worker.slots_free
  );
  return jobs > 0 ? `${trans._n('%1 job', '%1 jobs', jobs)} · ${slots}` : slots;
}

function problems(worker: IWorker): string[] {
  return [...worker.inventory.problems, ...worker.notes];
}

function MachineDetails(props: {
  id: string;
  worker: IWorker;
  jobs: readonly IJob[];
  trans: TranslationBundle;
}): JSX.Element {
  const { worker, jobs, trans } = props;
  const { inventory } = worker;
  const facts = [
    inventory.cpu_cores ? trans._n('%1 core', '%1 cores', inventory.cpu_cores) : '',
    inventory.ram_bytes ? trans.__('%1 memory', size(inventory.ram_bytes)) : '',
    inventory.os && `${inventory.os} ${inventory.arch}`.trim(),
    inventory.python && `Python ${inventory.python}`,
    inventory.zone || inventory.region
  ].filter(Boolean);
  return (
    <div className="gpulayer-Machine-details" id={props.id}>
      {inventory.devices.map(device => (
        <Device key={device.uuid} device={device} worker={worker} jobs={jobs} trans={trans} />
      ))}
      {inventory.devices.length === 0 && (
        <div className="gpulayer-Muted">{trans.__('no accelerator')}</div>
      )}
      <Frameworks inventory={inventory} trans={trans} />
      {worker.connected && worker.sample && (
        <Host sample={worker.sample} inventory={inventory} trans={trans} />
      )}
      <div className="gpulayer-Muted">{facts.join(' · ')}</div>
    </div>
  );
}
