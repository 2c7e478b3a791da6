import { QueryCache, QueryClient } from "@tanstack/react-query";
import { ApiError } from "./error";

/** The lists of the fleet: what goes from memory when the session ends. */
const fleet = ["agents", "calls"];

// A refusal doesn't change by asking again; a lost connection may.
const retry = (failures: number, error: Error) => !(error instanceof ApiError) && failures < 2;

/** Makes the page's memory. When any question is refused as unauthenticated, the session has ended: it forgets the fleet. */
export function makeQueries(): QueryClient {
  const cache = new QueryCache({
    onError: (error, query) => {
      if (!isRefusal(error)) return;
      if (query.queryKey[0] !== "whoami") {
        queries.invalidateQueries({ queryKey: ["whoami"] });
        return;
      }
      for (const key of fleet) queries.removeQueries({ queryKey: [key] });
    },
  });
  const queries: QueryClient = new QueryClient({
    queryCache: cache,
    // A browser that thinks it's offline still reaches a server on its own machine: always ask.
    defaultOptions: {
      queries: { retry, staleTime: 1000, networkMode: "always" },
      mutations: { networkMode: "always" },
    },
  });
  return queries;
}

export function isRefusal(error: Error | null): boolean {
  return error instanceof ApiError && error.status === 401;
}
