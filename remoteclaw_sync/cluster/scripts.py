"""What Redis has to do as one step, in Lua.

Times are in milliseconds of the Redis server's clock, because the clocks of machines differ.
"""

from __future__ import annotations

NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# --- runs: KEYS are the run's hash, its events, its params, its asks -------------------------------------------------
# Fields of the hash: state (queued, live, ended), owner (a secret that only its worker knows), inbox (of its worker),
# until (when its lease, or its time in the queue, ends), n (number of the last event), kept (whether events are kept).

_KEEP = """
local function keep(milliseconds)
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, milliseconds) end
end
"""

# ARGV: milliseconds in the queue, the params. Kept for twice that time, so that followers learn that no worker came.
RESERVE = (
    NOW
    + _KEEP
    + """
redis.call('HSET', KEYS[1], 'state', 'queued', 'until', now + ARGV[1], 'n', 0, 'kept', 1)
redis.call('SET', KEYS[3], ARGV[2])
keep(ARGV[1] * 2)
redis.call('PEXPIRE', KEYS[3], ARGV[1])
return 1
"""
)

# ARGV: owner, inbox, lease, retention. Returns the params, or false if the run cannot be taken.
CLAIM = (
    NOW
    + _KEEP
    + """
local run = redis.call('HMGET', KEYS[1], 'state', 'until')
if run[1] ~= 'queued' or tonumber(run[2]) < now then return false end
local params = redis.call('GET', KEYS[3])
if not params then return false end
redis.call('DEL', KEYS[3])
redis.call('HSET', KEYS[1], 'state', 'live', 'owner', ARGV[1], 'inbox', ARGV[2], 'until', now + ARGV[3])
keep(ARGV[3] + ARGV[4])
return params
"""
)

# ARGV: owner, inbox, lease, retention, kept.
ENTER = (
    NOW
    + _KEEP
    + """
redis.call('HSET', KEYS[1], 'state', 'live', 'owner', ARGV[1], 'inbox', ARGV[2], 'until', now + ARGV[3], 'n', 0,
  'kept', ARGV[5])
keep(ARGV[3] + ARGV[4])
return 1
"""
)

# ARGV: owner, inbox, lease, retention, kept, the number of events that the worker knows to be kept.
# Returns 1, or 0 if others have ended the run. Sets up again what Redis has forgotten: everything, if it was emptied,
# or that the worker took the run, if that happened in the last second before Redis died.
BEAT = (
    NOW
    + _KEEP
    + """
local run = redis.call('HMGET', KEYS[1], 'state', 'owner')
if not run[1] or run[1] == 'queued' then
  redis.call('HSET', KEYS[1], 'state', 'live', 'owner', ARGV[1], 'inbox', ARGV[2], 'n', ARGV[6], 'kept', ARGV[5])
  redis.call('DEL', KEYS[3])
elseif run[2] ~= ARGV[1] then
  return 0
elseif run[1] == 'ended' then
  return 1
end
redis.call('HSET', KEYS[1], 'until', now + ARGV[3])
keep(ARGV[3] + ARGV[4])
return 1
"""
)

# ARGV: owner, most events, retention, whether the last is a `done`, whether a gap is accepted, number, data...
# Returns the number of the last event that is kept; -1 if others have ended the run, -2 if the run is unknown. An event
# that is already there is not added again, so a worker that got no answer can repeat the call.
APPEND = (
    _KEEP
    + """
local run = redis.call('HMGET', KEYS[1], 'state', 'owner', 'n')
if not run[1] or run[1] == 'queued' then return -2 end
if run[2] ~= ARGV[1] then return -1 end
local n = tonumber(run[3])
if run[1] == 'ended' then return n end
if run[1] ~= 'live' then return -1 end
local number = tonumber(ARGV[6])
if number > n + 1 and ARGV[5] == '0' then return n end
for index = 7, #ARGV do
  if number > n then
    redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[2], number .. '-0', 'd', ARGV[index])
    n = number
  end
  number = number + 1
end
redis.call('HSET', KEYS[1], 'n', n)
if ARGV[4] == '1' then
  redis.call('HSET', KEYS[1], 'state', 'ended')
  redis.call('DEL', KEYS[3], KEYS[4])
  keep(ARGV[3])
end
return n
"""
)

# ARGV: which runs to end (dead: its lease or its time in the queue has expired; queued; any), the number of the last
# event that the caller knows, retention, data... Returns 1 if this call ended the run, 0 if it must not be ended this
# way, -1 if there are more events.
END = (
    NOW
    + _KEEP
    + """
local run = redis.call('HMGET', KEYS[1], 'state', 'until', 'n')
if run[1] ~= 'queued' and run[1] ~= 'live' then return 0 end
if ARGV[1] == 'dead' and tonumber(run[2]) >= now then return 0 end
if ARGV[1] == 'queued' and run[1] ~= 'queued' then return 0 end
local n = tonumber(run[3])
if n ~= tonumber(ARGV[2]) then return -1 end
for index = 4, #ARGV do
  n = n + 1
  redis.call('XADD', KEYS[2], n .. '-0', 'd', ARGV[index])
end
redis.call('HSET', KEYS[1], 'state', 'ended', 'n', n)
redis.call('HDEL', KEYS[1], 'owner')
redis.call('DEL', KEYS[3], KEYS[4])
keep(ARGV[3])
return 1
"""
)

# Returns state, n, kept, inbox and whether its time has expired; nothing if the run is unknown.
LOOK = (
    NOW
    + """
local run = redis.call('HMGET', KEYS[1], 'state', 'n', 'kept', 'inbox', 'until')
if not run[1] then return false end
return {run[1], tonumber(run[2]), tonumber(run[3]), run[4] or '', tonumber(run[5]) < now and 1 or 0}
"""
)

# --- lines: KEYS are the line (ticket -> number), when each was seen last, the counter ------------------------------

_PURGE = (
    NOW
    + """
local function purge(lease)
  for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. (now - lease))) do
    redis.call('ZREM', KEYS[1], ticket)
    redis.call('ZREM', KEYS[2], ticket)
  end
end
local function keep(lease)
  redis.call('PEXPIRE', KEYS[1], lease * 2)
  redis.call('PEXPIRE', KEYS[2], lease * 2)
  redis.call('PEXPIRE', KEYS[3], math.max(lease * 2, 86400000))
end
"""
)

# ARGV: ticket, its number ('' for a new one), lease. Returns its number and how many are ahead of it. A ticket that was
# considered dead gets its old place back.
LINE_UP = (
    _PURGE
    + """
local number = ARGV[2]
redis.call('ZADD', KEYS[2], now, ARGV[1])
purge(tonumber(ARGV[3]))
if number == '' then
  number = redis.call('ZSCORE', KEYS[1], ARGV[1]) or redis.call('INCR', KEYS[3])
end
redis.call('ZADD', KEYS[1], number, ARGV[1])
keep(tonumber(ARGV[3]))
return {tonumber(number), redis.call('ZRANK', KEYS[1], ARGV[1])}
"""
)

# ARGV: ticket, limit. Returns the tickets that may now hold a slot.
LEAVE = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('ZRANGE', KEYS[1], 0, ARGV[2] - 1)
"""

# --- sessions: KEYS are the ids and when each was used last ----------------------------------------------------------

# ARGV: key, now, oldest use that counts.
SESSION_GET = """
local used = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not used or tonumber(used) < tonumber(ARGV[3]) then return false end
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
return redis.call('HGET', KEYS[1], ARGV[1])
"""

# ARGV: key, now, oldest use that counts, how many expired ones stay, session id.
SESSION_SET = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[5])
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
local spare = redis.call('ZCOUNT', KEYS[2], '-inf', '(' .. ARGV[3]) - ARGV[4]
if spare > 0 then
  for _, key in ipairs(redis.call('ZRANGE', KEYS[2], 0, spare - 1)) do
    redis.call('HDEL', KEYS[1], key)
    redis.call('ZREM', KEYS[2], key)
  end
end
return 1
"""

# ARGV: key, session id ('' for any).
SESSION_FORGET = """
local there = redis.call('HGET', KEYS[1], ARGV[1])
if not there or (ARGV[2] ~= '' and there ~= ARGV[2]) then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
"""

# --- states of sessions: KEYS is the state --------------------------------------------------------------------------

# ARGV: the generation that the caller knows. Returns the generation, and the data if the generation differs.
STATE_LOAD = """
local generation = redis.call('HGET', KEYS[1], 'generation')
if not generation then return false end
if generation == ARGV[1] then return {generation} end
return {generation, redis.call('HGET', KEYS[1], 'data')}
"""

# ARGV: the generation to follow, data, milliseconds to keep it ('' for ever). Returns the new generation; if the stored
# one is not the one to follow, returns -(stored) - 1.
STATE_SAVE = """
local there = tonumber(redis.call('HGET', KEYS[1], 'generation') or '0')
if there ~= tonumber(ARGV[1]) then return -there - 1 end
redis.call('HSET', KEYS[1], 'generation', there + 1, 'data', ARGV[2])
if ARGV[3] == '' then redis.call('PERSIST', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return there + 1
"""
