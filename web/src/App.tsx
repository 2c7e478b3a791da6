import { isRefusal } from "./api/cache";
import { useWhoami } from "./api/queries";
import { Overview } from "./pages/Overview";
import { SignIn } from "./pages/SignIn";
import { Notice } from "./parts/Notice";

/** Shows nothing of the fleet until the server has said who is asking, and nothing any more when it no longer knows. */
export function App() {
  const who = useWhoami();
  if (isRefusal(who.error)) return <SignIn />;
  if (who.data) return <Overview who={who.data} />;
  if (who.error) {
    return (
      <main className="mx-auto max-w-md p-6 pt-24">
        <Notice tone="bad" title="The server doesn't answer">
          <p>{who.error.message}. This page tries again by itself.</p>
        </Notice>
      </main>
    );
  }
  return <p className="p-6 pt-24 text-center text-muted">Asking the server…</p>;
}
