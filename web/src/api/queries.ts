import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { client, closeSession, openSession, unwrap } from "./client";

/** How often the lists are asked again, in milliseconds. Hidden tabs don't ask. */
const every = 4000;

export function useWhoami() {
  return useQuery({
    queryKey: ["whoami"],
    queryFn: () => unwrap(client.GET("/whoami")),
    refetchInterval: (query) => (query.state.error && !query.state.data ? 5000 : 30_000),
  });
}

export function useAgents() {
  return useQuery({
    queryKey: ["agents"],
    queryFn: () => unwrap(client.GET("/agents", { params: { query: { limit: 200 } } })),
    refetchInterval: every,
  });
}

export function useCalls() {
  return useQuery({
    queryKey: ["calls"],
    queryFn: () => unwrap(client.GET("/calls", { params: { query: { limit: 20 } } })),
    refetchInterval: every,
  });
}

export function useSignIn() {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: (pat: string) => openSession(pat),
    onSuccess: () => queries.resetQueries(),
  });
}

export function useSignOut() {
  const queries = useQueryClient();
  return useMutation({
    mutationFn: closeSession,
    // What was shown goes at once, also from memory.
    onSettled: () => queries.resetQueries(),
  });
}
