import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';

interface IBoundaryProps {
  trans: TranslationBundle;
  children: React.ReactNode;
}

/** A fault in one part shows there, in one line, and leaves the rest of the page alone. */
export class Boundary extends React.Component<IBoundaryProps, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };

  static getDerivedStateFromError(error: Error): { error: Error } {
    return { error };
  }

  override render(): React.ReactNode {
    const { trans, children } = this.props;
    if (this.state.error === null) {
      return children;
    }
    return (
      <div className="gpulayer-Banner" data-kind="error" role="alert">
        <p>{trans.__('This part of GPUlayer stopped: %1', this.state.error.message)}</p>
        <button
          type="button"
          className="gpulayer-Action"
          onClick={() => this.setState({ error: null })}
        >
          {trans.__('show it again')}
        </button>
      </div>
    );
  }
}
