import { plain } from "../lib/text";

/** Shows what a host or a caller said: as text alone, kept apart from its surroundings. */
export function Said({ children }: { children: string }) {
  return <bdi className="wrap-anywhere">{plain(children)}</bdi>;
}
