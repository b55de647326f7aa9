/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The peer's side of the packet-buffer benchmark: DPDK's mbufs, mempool and ring, one case a run,
 * so that it can be run in turn with the same case of ours. Not part of any build: `linerate lab
 * run peers-buffers` and `cargo bench -p linerate-skb` compile it and run it. By hand (Debian:
 * libdpdk-dev):
 *
 *	cc -O3 $(pkg-config --cflags libdpdk) -march=native -o mbench mbench.c \
 *		$(pkg-config --libs libdpdk)
 *	./mbench -l 0,1 --in-memory --no-pci --no-telemetry -- bulk 32768 15
 *
 * prints one line, the median of 15 repetitions of 32768 bursts of 32 buffers:
 *
 *	case=bulk ticks=7.3400 bursts=32768 reps=15 clean=14
 *
 * ticks: of the TSC, per buffer. clean: repetitions in which no thread waited for a CPU for more
 * than a hundredth of the time; if there is one, the median is theirs. `-- version` prints what it
 * was built against and which pages it got.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_version.h>

#define BURST 32
#define POOL_SIZE 8191
#define CACHE_SIZE 256
#define RING_SIZE 1024
#define REPS_MAX 99

/* One repetition of one case. */
struct sample {
	double ticks; /* per buffer */
	int clean;
};

/* What a case works on; cases that need no ring, or no pool, ignore it. */
struct bench {
	struct rte_mempool *pool;
	struct rte_ring *ring;
	uint64_t bursts;
};

/* The second field of schedstat: ready to run, and not running. */
static uint64_t run_delay_ns(void)
{
	uint64_t delay = 0;
	FILE *file = fopen("/proc/thread-self/schedstat", "r");

	if (file == NULL)
		return 0;
	if (fscanf(file, "%*u %" SCNu64, &delay) != 1)
		delay = 0;
	fclose(file);
	return delay;
}

/* Allocate and initialise in bulk, free in bulk. */
static void bulk(struct bench *b)
{
	struct rte_mbuf *m[BURST];

	for (uint64_t i = 0; i < b->bursts; i++) {
		if (rte_pktmbuf_alloc_bulk(b->pool, m, BURST))
			rte_panic("the pool is empty\n");
		rte_pktmbuf_free_bulk(m, BURST);
	}
}

/* Allocate and initialise in bulk, free one by one. */
static void single(struct bench *b)
{
	struct rte_mbuf *m[BURST];

	for (uint64_t i = 0; i < b->bursts; i++) {
		if (rte_pktmbuf_alloc_bulk(b->pool, m, BURST))
			rte_panic("the pool is empty\n");
		for (int j = 0; j < BURST; j++)
			rte_pktmbuf_free(m[j]);
	}
}

/* Pointers into a ring and out again, on one core. */
static void ring(struct bench *b)
{
	void *p[BURST];

	for (int j = 0; j < BURST; j++)
		p[j] = p;
	for (uint64_t i = 0; i < b->bursts; i++) {
		rte_ring_enqueue_burst(b->ring, p, BURST, NULL);
		rte_compiler_barrier();
		rte_ring_dequeue_burst(b->ring, p, BURST, NULL);
		rte_compiler_barrier();
	}
}

/* The other end of `cross`: it reads the mbufs, not the data, and frees them in bulk. */
struct consumer {
	struct bench *bench;
	uint64_t lengths;
	uint64_t delay_ns;
	volatile int ready;
};

static int consume(void *argument)
{
	struct consumer *c = argument;
	uint64_t want = c->bench->bursts * BURST, got = 0, lengths = 0, delay = run_delay_ns();
	struct rte_mbuf *m[BURST];

	c->ready = 1;
	while (got < want) {
		unsigned int n = rte_ring_dequeue_burst(c->bench->ring, (void **)m, BURST, NULL);

		if (n == 0) {
			rte_pause();
			continue;
		}
		for (unsigned int j = 0; j < n; j++)
			lengths += m[j]->data_len + m[j]->pkt_len;
		rte_pktmbuf_free_bulk(m, n);
		got += n;
	}
	c->lengths = lengths;
	c->delay_ns = run_delay_ns() - delay;
	return 0;
}

/* Allocate on one core, hand over, free on the other. */
static void produce(struct bench *b)
{
	struct rte_mbuf *m[BURST];

	for (uint64_t i = 0; i < b->bursts; i++) {
		unsigned int k = 0;

		while (rte_pktmbuf_alloc_bulk(b->pool, m, BURST))
			rte_pause();
		while (k < BURST) {
			unsigned int n = rte_ring_enqueue_burst(b->ring, (void **)m + k, BURST - k, NULL);

			if (n == 0)
				rte_pause();
			k += n;
		}
	}
}

static struct sample sample(struct bench *b, uint64_t ticks, uint64_t delay_ns)
{
	double ns = ticks * 1e9 / rte_get_tsc_hz();

	return (struct sample){ (double)ticks / (b->bursts * BURST), delay_ns <= ns / 100 };
}

static struct sample on_one_core(struct bench *b, void (*loop)(struct bench *))
{
	uint64_t delay = run_delay_ns(), start = rte_rdtsc_precise();

	loop(b);
	uint64_t ticks = rte_rdtsc_precise() - start;

	return sample(b, ticks, run_delay_ns() - delay);
}

static struct sample on_two_cores(struct bench *b)
{
	struct consumer c = { .bench = b };

	if (rte_eal_remote_launch(consume, &c, rte_get_next_lcore(-1, 1, 0)))
		rte_panic("cross needs two lcores\n");
	while (!c.ready)
		rte_pause();
	uint64_t delay = run_delay_ns(), start = rte_rdtsc_precise();

	produce(b);
	rte_eal_mp_wait_lcore();
	uint64_t ticks = rte_rdtsc_precise() - start;

	delay = run_delay_ns() - delay;
	if (c.lengths != 0)
		rte_panic("an empty mbuf has a length\n");
	return sample(b, ticks, RTE_MAX(delay, c.delay_ns));
}

static const struct {
	const char *name;
	unsigned int cache_size;
	void (*loop)(struct bench *); /* NULL: two cores */
} cases[] = {
	{ "bulk", CACHE_SIZE, bulk },
	{ "bulk-nocache", 0, bulk },
	{ "single", CACHE_SIZE, single },
	{ "ring", CACHE_SIZE, ring },
	{ "cross", CACHE_SIZE, NULL },
};

/* The clean ones first, each kind by its ticks. */
static int by_ticks(const void *a, const void *b)
{
	const struct sample *x = a, *y = b;

	if (x->clean != y->clean)
		return y->clean - x->clean;
	return (x->ticks > y->ticks) - (x->ticks < y->ticks);
}

static void run(unsigned int which, uint64_t bursts, int reps)
{
	struct sample samples[REPS_MAX];
	struct bench b = { .bursts = bursts };

	b.pool = rte_pktmbuf_pool_create_by_ops("mbufs", POOL_SIZE, cases[which].cache_size, 0,
						RTE_MBUF_DEFAULT_BUF_SIZE, rte_socket_id(),
						"ring_mp_mc");
	if (b.pool == NULL)
		rte_panic("no pool: %s\n", rte_strerror(rte_errno));
	b.ring = rte_ring_create("ring", RING_SIZE, rte_socket_id(),
				 RING_F_SP_ENQ | RING_F_SC_DEQ);
	if (b.ring == NULL)
		rte_panic("no ring: %s\n", rte_strerror(rte_errno));
	/* Repetition -1 warms up. */
	for (int i = -1; i < reps; i++) {
		struct sample s = cases[which].loop ? on_one_core(&b, cases[which].loop)
						    : on_two_cores(&b);

		if (i >= 0)
			samples[i] = s;
	}
	qsort(samples, reps, sizeof(*samples), by_ticks);
	int clean = 0;

	while (clean < reps && samples[clean].clean)
		clean++;
	printf("case=%s ticks=%.4f bursts=%" PRIu64 " reps=%d clean=%d\n", cases[which].name,
	       samples[(clean ? clean : reps) / 2].ticks, bursts, reps, clean);
}

int main(int argc, char **argv)
{
	int eaten = rte_eal_init(argc, argv);

	if (eaten < 0)
		rte_exit(EXIT_FAILURE, "EAL: %s\n", rte_strerror(rte_errno));
	argc -= eaten;
	argv += eaten;
	if (argc == 2 && strcmp(argv[1], "version") == 0) {
		printf("version=%s tsc_hz=%" PRIu64 " huge=%d\n", strchr(rte_version(), ' ') + 1,
		       rte_get_tsc_hz(), rte_eal_has_hugepages());
		return rte_eal_cleanup();
	}
	for (unsigned int i = 0; argc == 4 && i < RTE_DIM(cases); i++) {
		int reps = atoi(argv[3]);

		if (strcmp(argv[1], cases[i].name) || reps < 1 || reps > REPS_MAX)
			continue;
		run(i, strtoull(argv[2], NULL, 10), reps);
		return rte_eal_cleanup();
	}
	rte_exit(EXIT_FAILURE, "usage: mbench EAL-OPTIONS -- version | CASE BURSTS REPS (1 to %d)\n",
		 REPS_MAX);
}
