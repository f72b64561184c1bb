#!lua flags=allow-oom
-- Write every effect of a prefix of the log and move the offset, or write nothing.
-- There is no rollback: everything that can be refused is refused before the first write.
-- KEYS: lease, meta, log, then the keys of the effects
-- ARGV: token, expected offset, new offset, observations done, number of publications,
--       each publication as channel, message,
--       each effect as operation, number of its key, number of arguments, arguments
-- Answers OK, ALREADY, FENCED or "INVALID: why".
local lease, meta, log = KEYS[1], KEYS[2], KEYS[3]
local expected, new = ARGV[2], ARGV[3]

if redis.call('GET', lease) ~= ARGV[1] then
  return 'FENCED'
end
local stored = redis.call('HMGET', meta, 'offset', 'done', 'in')
local offset = stored[1] or '0-0:-1'
if offset ~= expected then
  return offset == new and 'ALREADY' or 'FENCED'
end

local function some(n) return n >= 1 end
local function couples(n) return n >= 2 and n % 2 == 0 end
local function none(n) return n == 0 end
local function one(n) return n == 1 end
-- operation: {type its key must have, what its number of arguments must be}
local OPERATIONS = {
  HSET = {'hash', couples}, HDEL = {'hash', some}, ZADD = {'zset', couples},
  ZREM = {'zset', some}, DEL = {nil, none}, UNLINK = {nil, none}, PEXPIRE = {nil, one},
  FEED = {'stream', function(n) return n >= 3 and n % 2 == 1 end}, -- bound, then id, entry
}
local NO_ID = '0-0'

-- Ids are compared as text: their numbers may be too long for a double.
local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local function before(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)%-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)%-(%d+)$')
  if a_ms ~= b_ms then return less(a_ms, b_ms) end
  return less(a_seq, b_seq)
end

local function is_id(text)
  for part in string.gmatch(text, '%d+') do
    if less('18446744073709551615', part) or (#part > 1 and part:sub(1, 1) == '0') then
      return false
    end
  end
  return string.match(text, '^%d+%-%d+$') ~= nil
end

-- A feed's bound on its length, and ids that rise.
local function bad_feed(first, last)
  if not string.match(ARGV[first], '^[1-9]%d*$') or #ARGV[first] > 15 then return true end
  local newest = NO_ID
  for i = first + 1, last, 2 do
    if not is_id(ARGV[i]) or not before(newest, ARGV[i]) then return true end
    newest = ARGV[i]
  end
  return false
end

local function newest_of(key)
  if redis.call('EXISTS', key) == 0 then return NO_ID end
  local info = redis.call('XINFO', 'STREAM', key)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end

-- Each entry names the one before it, so that a reader sees what was trimmed away; 'c' is the
-- checksum of both ids, the entry has its own. One that is not newer than the newest is there
-- already: a repeated effect.
local function feed(key, first, last)
  local newest = newest_of(key)
  for i = first + 1, last, 2 do
    local id = ARGV[i]
    if before(newest, id) then
      local check = redis.sha1hex(id .. ' ' .. newest):sub(1, 8)
      redis.call('XADD', key, 'MAXLEN', '~', ARGV[first], id, 'e', ARGV[i + 1], 'b', newest,
        'c', check)
      newest = id
    end
  end
end

local function bad_number(operation, first, last)
  if operation == 'PEXPIRE' then
    return not string.match(ARGV[first], '^%d+$') or #ARGV[first] > 15
  end
  for i = first, last, 2 do -- ZADD's scores
    local score = tonumber(ARGV[i])
    if not score or score ~= score then return true end
  end
  return false
end

local types = {} -- of each key, as it will be after the effects so far
local function fault(operation, key, first, last)
  local rule = OPERATIONS[operation]
  if not rule then return 'unknown operation ' .. tostring(operation) end
  if not key then return operation .. ' without a key' end
  if last > #ARGV or not rule[2](last - first + 1) then
    return operation .. ' ' .. key .. ' with ' .. (last - first + 1) .. ' arguments'
  end
  if (operation == 'PEXPIRE' or operation == 'ZADD') and bad_number(operation, first, last) then
    return operation .. ' ' .. key .. ' with a bad number'
  end
  if operation == 'FEED' and bad_feed(first, last) then
    return 'FEED ' .. key .. ' with a bad bound or id'
  end
  if key == lease or key == meta or key == log then return operation .. ' on ' .. key end
  local kind = types[key] or redis.call('TYPE', key).ok
  if not rule[1] then
    types[key] = operation == 'PEXPIRE' and kind or 'none'
  elseif kind == 'none' or kind == rule[1] then
    types[key] = rule[1]
  else
    return operation .. ' on ' .. key .. ', a ' .. kind
  end
  return nil
end

-- A damaged counter stops nobody: as if nothing waited after this.
local done = tonumber(stored[2] or '0')
done = done and done + tonumber(ARGV[4]) or tonumber(stored[3] or '0') or 0
local ms, seq, index = string.match(new, '^(%d+)%-(%d+):(%-?%d+)$')
if not ms then return 'INVALID: offset ' .. new end
local log_type = redis.call('TYPE', log).ok
if log_type ~= 'stream' and log_type ~= 'none' then return 'INVALID: the log is a ' .. log_type end

local effects = 6 + 2 * tonumber(ARGV[5]) -- where they begin in ARGV
local at = effects
while at <= #ARGV do
  local first = at + 3
  local last = first + tonumber(ARGV[at + 2]) - 1
  local why = fault(ARGV[at], KEYS[3 + tonumber(ARGV[at + 1])], first, last)
  if why then return 'INVALID: ' .. why end
  at = last + 1
end

-- unpack() and a call's arguments live on Lua's stack, which ends at about 8,000; even, for pairs.
local MOST = 3998
at = effects
while at <= #ARGV do
  local operation, key, n = ARGV[at], KEYS[3 + tonumber(ARGV[at + 1])], tonumber(ARGV[at + 2])
  local first, last = at + 3, at + 2 + n
  if operation == 'FEED' then
    feed(key, first, last)
  elseif n == 0 then
    redis.call(operation, key)
  else
    for i = first, last, MOST do
      redis.call(operation, key, unpack(ARGV, i, math.min(i + MOST - 1, last)))
    end
  end
  at = last + 1
end

local moved = new ~= expected
if moved then
  -- Only whole applied entries go: a partly applied one stays until its last command is. A
  -- sequence number too long for a double waits for the next millisecond's entries.
  local limit = seq
  if index == '-1' and #seq <= 15 then limit = string.format('%.0f', tonumber(seq) + 1) end
  redis.call('XTRIM', log, 'MINID', '=', ms .. '-' .. limit)
end
redis.call('HSET', meta, 'done', string.format('%.0f', done))
if moved then
  redis.call('HSET', meta, 'attempts', 0, 'attempt_offset', new, 'offset', new,
    'offset_copy', new .. ' ' .. redis.sha1hex(new):sub(1, 8))
  redis.call('HDEL', meta, 'trying', 'tries') -- see trial.lua
end
for i = 6, effects - 1, 2 do -- with a hash tag it stays in the slot's shard
  redis.call(ARGV[i]:find('{', 1, true) and 'SPUBLISH' or 'PUBLISH', ARGV[i], ARGV[i + 1])
end
return 'OK'
