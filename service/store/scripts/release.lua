#!lua flags=allow-oom
-- Give a lease back if it is still ours; a clean release forgets the attempts at this offset.
-- Also where it is not: end the trial of a command (see trial.lua) that is under way.
-- KEYS: lease, meta   ARGV: token, '1' when clean, what the trial came to: 'innocent', 'failed' or
--                           'unknown', where the worker cannot say so itself
-- Answers 1, or 0 when it was not ours.
local lease, meta, token = KEYS[1], KEYS[2], ARGV[1]
local text = ARGV[3] ~= 'unknown' and redis.call('HGET', meta, 'tries')
local readable, tries = pcall(cjson.decode, text or '{}')
if not readable then tries = {} end -- damaged: they count for nothing
local began = tries[token] or 0 -- a certain failure stays one
if began ~= 0 then
  tries[token] = ARGV[3] == 'failed' and 0 or nil
  if next(tries) then
    redis.call('HSET', meta, 'tries', cjson.encode(tries))
  else
    redis.call('HDEL', meta, 'trying', 'tries')
  end
end

if redis.call('GET', lease) ~= token then
  return 0
end
if ARGV[2] == '1' then
  redis.call('HSET', meta, 'attempts', 0)
end
return redis.call('DEL', lease)
