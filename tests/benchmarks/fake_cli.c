/* A CLI that costs next to nothing: it writes a prepared stream as fast as the pipe takes it, or line by line at a
   fixed pace with the time of writing put into each line.

     fake_cli FILE                  the whole file
     fake_cli FILE PAUSE_US COUNT   COUNT lines, PAUSE_US apart; "@@@@@@@@@@@@@@@@@@@@" becomes CLOCK_MONOTONIC in ns
     fake_cli FILE -1 SECONDS       the first line, then silence
     FAKE_STREAM=FILE fake_cli ...  the whole file, whatever the arguments; for other libraries, which look at the
                                    version first, or (claude-agent-sdk) send a control request and wait
*/
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char MARK[] = "@@@@@@@@@@@@@@@@@@@@";

static void write_all(const char *data, size_t size) {
  while (size) {
    ssize_t n = write(1, data, size);
    if (n <= 0) exit(1);
    data += n;
    size -= n;
  }
}

/* Answers the control request in the first line of stdin. Takes stdin to the end of that line at the least. */
static void shake_hands(void) {
  static char line[65536];
  size_t size = 0;
  ssize_t n;
  while (size < sizeof line - 1 && (n = read(0, line + size, sizeof line - 1 - size)) > 0) {
    size += n;
    if (memchr(line, '\n', size)) break;
  }
  char *id = strstr(line, "\"request_id\"");
  if (!id || !strstr(line, "\"control_request\"")) return;
  id = strchr(strchr(id, ':'), '"') + 1;
  *strchr(id, '"') = 0;
  printf("{\"type\":\"control_response\",\"response\":{\"subtype\":\"success\",\"request_id\":\"%s\","
         "\"response\":{}}}\n", id);
  fflush(stdout);
}

int main(int argc, char **argv) {
  const char *path = getenv("FAKE_STREAM");
  if (path) {
    if (argc > 1 && (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-v"))) return puts("99.0.0") < 0;
    shake_hands();
    argc = 2;
  } else {
    path = argv[1];
  }
  int fd = open(path, O_RDONLY);
  struct stat st;
  if (fd < 0 || fstat(fd, &st)) return 2;
  char *data = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  if (argc == 2) {
    write_all(data, st.st_size);
    return 0;
  }
  long pause_us = atol(argv[2]), count = atol(argv[3]);
  char *line = data, *end;
  if (pause_us < 0) {
    end = memchr(line, '\n', data + st.st_size - line);
    write_all(line, end + 1 - line);
    sleep(count);
    return 0;
  }
  struct timespec next;
  clock_gettime(CLOCK_MONOTONIC, &next);
  for (long i = 0; i < count && line < data + st.st_size; i++, line = end + 1) {
    end = memchr(line, '\n', data + st.st_size - line);
    if (!end) break;
    next.tv_nsec += pause_us * 1000;
    while (next.tv_nsec >= 1000000000) { next.tv_nsec -= 1000000000; next.tv_sec++; }
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
    char *mark = memmem(line, end - line, MARK, sizeof MARK - 1);
    if (mark) {
      struct timespec now;
      char stamp[32];
      clock_gettime(CLOCK_MONOTONIC, &now);
      snprintf(stamp, sizeof stamp, "%020lld", now.tv_sec * 1000000000LL + now.tv_nsec);
      memcpy(mark, stamp, 20);
    }
    write_all(line, end + 1 - line);
  }
  return 0;
}
