import { type FormEvent, useState } from "react";
import { useSignIn } from "../api/queries";
import { Mark } from "../parts/Mark";
import { Notice } from "../parts/Notice";

export function SignIn() {
  const [pat, setPat] = useState("");
  const signIn = useSignIn();
  const submit = (event: FormEvent) => {
    event.preventDefault();
    signIn.mutate(pat.trim());
  };
  return (
    <main className="mx-auto max-w-md p-4 pt-16 sm:pt-24">
      <Mark />
      <form onSubmit={submit} className="mt-6 rounded-lg border border-line bg-card p-6">
        <h1 className="font-semibold text-lg">Sign in with a PAT</h1>
        <label htmlFor="pat" className="mt-4 block text-sm">
          Personal access token
        </label>
        <input
          id="pat"
          type="password"
          autoComplete="off"
          spellCheck={false}
          required
          placeholder="drv_pat_…"
          value={pat}
          onChange={(event) => setPat(event.target.value)}
          aria-describedby="pat-help"
          className="mt-1 w-full rounded border border-line bg-page px-3 py-2 font-mono text-sm"
        />
        <button
          type="submit"
          disabled={signIn.isPending}
          className="mt-4 w-full cursor-pointer rounded bg-accent px-4 py-2 font-medium text-on-accent disabled:opacity-60"
        >
          {signIn.isPending ? "Signing in…" : "Sign in"}
        </button>
        <div className="mt-4">{signIn.error && <Notice tone="bad" title={signIn.error.message} />}</div>
        <p id="pat-help" className="mt-4 text-muted text-sm">
          <code>make run</code> prints one. On a server of your own:{" "}
          <code className="wrap-anywhere">drover pat create</code>. The page keeps a session for 12 hours at most, not
          the token.
        </p>
      </form>
    </main>
  );
}
