import { useQueryClient } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";
import { ApiError } from "./error";

/** Tells whether the latest question to the server got no answer at all. */
export function useIsFetchFailing(): boolean {
  const cache = useQueryClient().getQueryCache();
  return useSyncExternalStore(
    (changed) => cache.subscribe(changed),
    () =>
      cache.getAll().some(({ state }) => {
        const error = state.error ?? state.fetchFailureReason;
        return error !== null && !(error instanceof ApiError);
      }),
  );
}
